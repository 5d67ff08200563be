"""Views of label tasks as the ledger keeps them, and which of them is shown. All take an open connection."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from pipeline.stores.ledger.schema import shown_views, views

ShownBy = Literal["choice", "command", "configuration"]
"""Who said that a view is shown: a person who chose it, a command that made or deleted one, or the end of a
run.
"""

_DELETED = ""  # what stands for its calibration


@dataclass(frozen=True, slots=True)
class ViewRow:
    """A view as it is kept: ``number`` counts a task's views from 1, ``calibration`` is JSON, ``threshold`` a
    probability or None.
    """

    number: int
    created_at: float
    calibration: str
    threshold: float | None
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ShownView:
    """Which view is shown: its ``number``, 0 for what the model said itself; ``held``: no run shows another
    one.
    """

    number: int
    held: bool
    by: ShownBy
    since: float


def task_views(connection: sa.Connection, task: int) -> list[ViewRow]:
    """Views of a task, oldest first, without those that were deleted."""
    found = connection.execute(sa.select(views).where(views.c.task_id == task).order_by(views.c.id))
    return [
        ViewRow(number, row.created_at, row.calibration, row.threshold, row.facts)
        for number, row in enumerate(found, 1)
        if row.calibration != _DELETED
    ]


def shown_view(connection: sa.Connection, task: int) -> ShownView | None:
    """The view that is shown; None where answers are shown as they were recorded."""
    row = connection.execute(sa.select(shown_views).where(shown_views.c.task_id == task)).one_or_none()
    return None if row is None else ShownView(row.number, bool(row.held), row.by, row.since)


def add_view(
    connection: sa.Connection,
    task: int,
    calibration: str,
    threshold: float | None,
    facts: Mapping[str, Any],
) -> ViewRow:
    """Keep one more view of a task."""
    now = time.time()
    connection.execute(
        views.insert().values(
            task_id=task, created_at=now, calibration=calibration, threshold=threshold, facts=dict(facts)
        )
    )
    count = connection.execute(
        sa.select(sa.func.count()).select_from(views).where(views.c.task_id == task)
    ).scalar_one()
    return ViewRow(count, now, calibration, threshold, facts)


def delete_view(connection: sa.Connection, task: int, number: int) -> None:
    """Forget all of a view but that there was one of its number."""
    row = sa.select(views.c.id).where(views.c.task_id == task).order_by(views.c.id)
    connection.execute(
        views.update()
        .where(views.c.id == row.offset(number - 1).limit(1).scalar_subquery())
        .values(calibration=_DELETED, threshold=None, facts={})
    )


def show_view(connection: sa.Connection, task: int, number: int, by: ShownBy, *, held: bool) -> None:
    """Let the view of that number be the one shown."""
    values = {"number": number, "held": int(held), "by": by, "since": time.time()}
    connection.execute(
        insert(shown_views)
        .values(task_id=task, **values)
        .on_conflict_do_update(index_elements=["task_id"], set_=values)
    )
