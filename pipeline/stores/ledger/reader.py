"""Looking into a ledger: counts, rows for exports, facts for reports. Each look is one snapshot, also while
the writer goes on.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, OperationalError

from pipeline.config import upgraded
from pipeline.errors import StoppedEarly
from pipeline.records import WORKING, Generation, TaskJob, unpack_generation
from pipeline.stores.ledger import gold_rows, queries, view_rows
from pipeline.stores.ledger.gold_rows import KeptLabel
from pipeline.stores.ledger.queries import (
    DocumentScores,
    ExportRow,
    InputRow,
    RecordedStep,
    Status,
    TaskRow,
)
from pipeline.stores.ledger.schema import attempts, meta, replies, runs, work
from pipeline.stores.ledger.task_versions import refuse_changed
from pipeline.stores.ledger.view_rows import ShownView, ViewRow
from pipeline.system.atomic_write import disk_fails, disk_is_full, says_full
from pipeline.system.run_lock import RUN, RunLock

RUNNER_DIED = "runner_died"
"""Outcome of an attempt in whose own work (its prompts, the reading of its answers) the runner died."""


class LedgerReader:
    """The methods of ``Ledger`` that change nothing. One thread."""

    def __init__(self, engine: sa.Engine, lock: RunLock, *, write: bool) -> None:
        self._engine = engine
        self._lock = lock
        self._writes = write
        self._task_ids: dict[str, int] = {}

    @property
    def _at_rest(self) -> bool:
        """Whether nobody computes: works that are marked as running were left so by a run that was killed, or
        wait for its model.
        """
        holder = self._lock.holder()
        if holder is None:
            return not self._writes
        return holder.command != RUN or holder.doing.get("stage", WORKING) != WORKING

    def resolved(self) -> dict[str, Any]:
        """What ``auto`` has meant in this run directory, by name."""
        with self._reading() as connection:
            rows = connection.execute(
                sa.select(meta.c.name, meta.c.value).where(meta.c.name.like("resolved.%"))
            )
            return {name.removeprefix("resolved."): value for name, value in rows}

    def pending_size(self, task: str) -> tuple[int, int]:
        """(works, characters) of a task that the reading that counts saw and that are pending."""
        with self._reading() as connection:
            query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(work.c.characters), 0)).where(
                work.c.task_id == self._task_ids[task],
                work.c.state == "pending",
                work.c.inventory_id == queries.presence(connection),
            )
            count, characters = connection.execute(query).one()
            return int(count), int(characters)

    def states_seen(self, task: str) -> dict[str, int]:
        """Works by state among those that the reading that counts saw: what a run was about, also a limited
        one.
        """
        with self._reading() as connection:
            return queries.states_seen(connection, self._task_ids[task])

    def expects_work(self) -> bool:
        """Whether the source was never read to its end, or its latest reading has left works undone: a guess
        before it is read again.
        """
        with self._reading() as connection:
            return queries.expects_work(connection)

    def runner_deaths(self, task: str, key: str) -> int:
        """How often the runner itself has died in this work, of all the times it was tried."""
        with self._reading() as connection:
            mine = (
                attempts.c.task_id == self._task_ids[task],
                attempts.c.key == key,
                attempts.c.outcome == RUNNER_DIED,
            )
            return int(
                connection.execute(sa.select(sa.func.count()).select_from(attempts).where(*mine)).scalar_one()
            )

    def replies(self, task: str, key: str) -> dict[str, Generation]:
        """Replies recorded for a work, by step key."""
        with self._reading() as connection:
            query = sa.select(replies.c.step_key, replies.c.generation).where(
                replies.c.task_id == self._task_ids[task], replies.c.key == key
            )
            found = connection.execute(query).all()
        return {
            step: unpack_generation({**packed, "features": base64.b64decode(packed.get("features", ""))})
            for step, packed in found
        }

    def status(self) -> Status:
        """Counts of the present inputs and works. Raises LedgerError when they do not add up."""
        with self._reading() as connection:
            found = queries.status(connection)
        return found.at_rest() if self._at_rest else found

    def rows(self) -> Iterator[ExportRow]:
        """Every present input in reading order with the results of the active tasks; flat in memory, one
        snapshot.
        """
        at_rest = self._at_rest
        with self._reading() as connection:
            for row in queries.export_rows(connection):
                yield row.at_rest() if at_rest else row

    def tasks(self) -> list[TaskRow]:
        """The active tasks, in the order in which they came."""
        with self._reading() as connection:
            return queries.active_tasks(connection)

    def check_tasks(self, jobs: Sequence[TaskJob], *, fork: bool) -> None:
        """Whether a run may ask ``jobs``. Raises JobChanged, unless it is to ``fork``."""
        if not fork:
            with self._reading() as connection:
                refuse_changed(connection, jobs)

    def rejects(self) -> Iterator[dict[str, Any]]:
        """Rejected rows of the latest inventory, in reading order."""
        with self._reading() as connection:
            yield from queries.rejected_rows(connection)

    def runs(self) -> list[dict[str, Any]]:
        """All runs, oldest first, with their facts. The configuration in them is as this version would have
        recorded it.
        """
        with self._reading() as connection:
            rows = connection.execute(sa.select(runs).order_by(runs.c.id)).mappings()
            return [{**row, "facts": _present_day(row["facts"])} for row in rows]

    def documents(self, document_id: str) -> list[InputRow]:
        """Present inputs of this id."""
        with self._reading() as connection:
            return queries.inputs_of(connection, document_id)

    def count_rows(self) -> int:
        """Present inputs, repeated ones counted as often as they are there."""
        with self._reading() as connection:
            return queries.count_rows(connection)

    def rows_among(self, document_keys: Collection[str]) -> dict[str, int]:
        """Those of the documents that are present, with how many inputs each has."""
        with self._reading() as connection:
            return queries.rows_among(connection, document_keys)

    def clashing_ids(self, limit: int = 20) -> list[tuple[str, int]]:
        """Ids that stand for several texts, with how many."""
        with self._reading() as connection:
            return queries.clashing_ids(connection, limit)

    def result(self, task: str, key: str) -> dict[str, Any] | None:
        """State and result of one work, None when the task does not know it."""
        with self._reading() as connection:
            found = queries.one_result(connection, self._task_ids[task], key)
        if found is not None and found["state"] == "running" and self._at_rest:
            found["state"] = "pending"
        return found

    def steps(self, task: str, key: str) -> list[RecordedStep]:
        """Recorded replies inside a work, with names and spans."""
        with self._reading() as connection:
            return queries.recorded_steps(connection, self._task_ids[task], key)

    def results(self, task: str, *, scores: bool = False) -> Iterator[Mapping[str, Any]]:
        """Results of a task's present works with state and attempts, for reports; with their raw ``scores``
        if wanted.
        """
        with self._reading() as connection:
            yield from queries.task_results(connection, self._task_ids[task], scores=scores)

    def features(self, task: str, key: str) -> bytes:
        """What the model made of a document, see ``Generation``; empty where it was not kept."""
        with self._reading() as connection:
            return queries.features_of(connection, self._task_ids[task], key)

    def some_id(self, document_key: str) -> str:
        """An id under which a document was read."""
        with self._reading() as connection:
            return queries.some_id(connection, document_key)

    def scored(self, task: str, *, with_features: bool = False) -> Iterator[DocumentScores]:
        """Documents that a label task has finished, with their uncalibrated scores, and what the model made
        of them if it is asked for.
        """
        with self._reading() as connection:
            yield from queries.scored(connection, self._task_ids[task], with_features=with_features)

    def views(self, task: str) -> list[ViewRow]:
        """Views of a task, oldest first."""
        with self._reading() as connection:
            return view_rows.task_views(connection, self._task_ids[task])

    def shown_view(self, task: str) -> ShownView | None:
        """Which view of a task exports show; None where answers are shown as they were recorded."""
        with self._reading() as connection:
            return view_rows.shown_view(connection, self._task_ids[task])

    def kept_labels(self, task: str) -> list[KeptLabel]:
        """Labels that people gave for a task, whichever version of it, in the order of their ids."""
        with self._reading() as connection:
            return gold_rows.kept_labels(connection, task)

    def keys_of_ids(self, ids: Collection[str]) -> dict[str, list[str]]:
        """The keys of the present documents that each id stands for; ids that stand for none are missing."""
        with self._reading() as connection:
            return gold_rows.keys_of_ids(connection, ids)

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except OperationalError as error:  # reading writes too: where other readers and the writer are
            if disk_refuses(error):
                raise stopped_by(error) from None
            raise


def _present_day(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {**facts, "config": upgraded(facts["config"])} if "config" in facts else dict(facts)


def disk_refuses(error: DatabaseError) -> bool:
    """Whether the disk, not SQLite or we, is at fault."""
    return says_full(error.orig) or "disk I/O error" in str(error.orig)


def stopped_by(error: DatabaseError) -> StoppedEarly:
    """What was committed is safe; the transaction that failed is undone, by SQLite, now or when the file is
    opened again.
    """
    if says_full(error.orig):
        return disk_is_full("the run directory")
    return disk_fails("the run directory", str(error.orig))
