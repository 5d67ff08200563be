"""The versions of a task that a ledger holds, and whether one that is asked for is among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from pipeline.errors import JobChanged
from pipeline.records import TaskJob
from pipeline.stores.ledger.same_task import same_task
from pipeline.stores.ledger.schema import tasks
from pipeline.stores.ledger.task_diff import describe_change


def versions_of(connection: sa.Connection, job: TaskJob) -> Sequence[Any]:
    """All that was ever asked under the name of ``job``, oldest first."""
    mine = sa.select(tasks).where(tasks.c.name == job.name).order_by(tasks.c.version)
    return connection.execute(mine).all()


def found_again(versions: Sequence[Any], job: TaskJob) -> Any | None:
    """The one of ``versions`` that asks what ``job`` asks; None where it is new."""
    return next((row for row in versions if same_task(row.identity, job.identity)), None)


def refuse_changed(connection: sa.Connection, jobs: Sequence[TaskJob]) -> None:
    """Raise JobChanged with the differences of every task that is known by its name and asks something
    new.
    """
    refused = []
    for job in jobs:
        versions = versions_of(connection, job)
        if versions and found_again(versions, job) is None:
            active = next(row for row in versions if row.active)
            refused.append(describe_change(job.name, active.identity, job.identity))
    if refused:
        raise JobChanged(
            "this run directory holds answers to other questions:\n" + "\n".join(refused) + "\n"
            "Use another run.directory, or --fork to start the changed tasks beside the old ones."
        )
