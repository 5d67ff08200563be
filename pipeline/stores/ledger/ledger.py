"""The ledger: the one source of truth for what has been asked, answered and failed in a run directory.

Only the runner writes, one transaction a batch of documents; readers may look at any time. A work is one
task's question about one document: (task, work key). Before a work begins its attempt is marked; when it
ends, result, state and attempt are committed together. What is present is what the latest settled reading of
the source has seen, and what it has kept without having looked at it.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DatabaseError, OperationalError

from pipeline.errors import LedgerError, UsageError
from pipeline.records import STATES, Generation, Outcome, Step, TaskJob, WorkId, pack_generation
from pipeline.stores.ledger import gold_rows, view_rows
from pipeline.stores.ledger.gold_rows import KeptLabel
from pipeline.stores.ledger.inventory import Inventory
from pipeline.stores.ledger.reader import RUNNER_DIED, LedgerReader, disk_refuses, stopped_by
from pipeline.stores.ledger.schema import (
    attempts,
    connect,
    features,
    meta,
    metadata,
    reading,
    replies,
    results,
    runs,
    tasks,
    use_write_ahead_log,
    work,
)
from pipeline.stores.ledger.task_versions import found_again, refuse_changed, versions_of
from pipeline.stores.ledger.upgrades import (
    check_format,
    missing_tables,
    newest_format,
    recorded_format,
    stand_in,
    upgrade,
)
from pipeline.stores.ledger.view_rows import ShownBy, ViewRow
from pipeline.system.atomic_write import failing_disk_stops
from pipeline.system.run_lock import RunLock

RecordedReply = tuple[WorkId, Step, Generation]
"""A reply inside a work: whose, to which question, what."""
_KEYS_AT_ONCE = 500

# What every batch of documents costs: built once, run with many rows at a time. Building them for each
# document took longer than SQLite itself.
_MINE = (work.c.task_id == sa.bindparam("of_task"), work.c.key == sa.bindparam("of_key"))
# States are looked at here, not in SQLite: given both, it takes the index of states, and reads all that is
# pending for a few keys.
_AMONG = sa.select(work.c.key, work.c.state, work.c.attempts, work.c.crashes).where(
    work.c.task_id == sa.bindparam("of_task"), work.c.key.in_(sa.bindparam("keys", expanding=True))
)
_BEGIN = work.update().where(*_MINE).values(state="running", attempts=work.c.attempts + 1)
_END = work.update().where(*_MINE).values(state=sa.bindparam("now_state"))
_OPEN_ATTEMPT = attempts.insert().values(
    task_id=sa.bindparam("of_task"),
    key=sa.bindparam("of_key"),
    run_id=sa.bindparam("run"),
    started_at=sa.bindparam("now"),
    number=sa.select(work.c.attempts).where(*_MINE).scalar_subquery(),
)
_CLOSE_ATTEMPT = (
    attempts.update()
    .where(
        attempts.c.task_id == sa.bindparam("of_task"),
        attempts.c.key == sa.bindparam("of_key"),
        attempts.c.outcome.is_(None),
    )
    .values(outcome=sa.bindparam("how"), detail=sa.bindparam("why"), ended_at=sa.bindparam("now"))
)
# What has taken the runner down in one task is likely to do so in the others: they, too, are tried last and
# alone.
_BLAME = (
    work.update()
    .where(
        work.c.document_key == sa.select(work.c.document_key).where(*_MINE).scalar_subquery(),
        work.c.state.in_(("pending", "running")),
    )
    .values(crashes=work.c.crashes + 1)
)
_KEEP_RESULT = insert(results).prefix_with("OR REPLACE")
_KEEP_REPLY = insert(replies).prefix_with("OR REPLACE")
_FORGET_READING = reading.delete().where(
    reading.c.task_id == sa.bindparam("of_task"), reading.c.key == sa.bindparam("of_key")
)
_KEEP_FEATURES = insert(features).prefix_with("OR REPLACE")


@dataclass(frozen=True, slots=True)
class PendingWork:
    """A work to be done. ``crashes`` counts attempts that ended with the worker's death, ``attempts`` all of
    them.
    """

    key: str
    attempts: int
    crashes: int


class Ledger(LedgerReader):
    """An open ledger; close it, or use it as a context manager. One thread."""

    @classmethod
    def open(cls, path: Path, *, write: bool) -> Ledger:
        """Open, or with ``write`` create, the ledger. Raises UsageError when there is none, LedgerError when
        it is not ours.
        """
        if not write and not path.exists():
            raise UsageError(f"{path.parent} is not a run directory: it has no {path.name}")
        if write and not path.exists():  # SQLite gives its other files the same rights
            with failing_disk_stops(path.parent):
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        engine = connect(path, write=write)
        ledger = cls(engine, RunLock(path.parent), write=write)
        try:
            ledger._check_format(path, write=write)
            ledger._load_tasks()
        except DatabaseError as error:
            engine.dispose()
            if disk_refuses(error):
                raise stopped_by(error) from None
            raise LedgerError(f"{path} cannot be read as a ledger: {error.orig}") from None
        except BaseException:
            engine.dispose()
            raise
        return ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._engine.dispose()

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_run(self, facts: Mapping[str, Any], died_in: WorkId | None = None) -> int:
        """Open a run. Attempts that an earlier one left open were cut short with it: nobody's fault, and
        pending again.

        Except that of ``died_in``, which the runner itself was working on when it died: that one counts
        against it.
        """
        now = time.time()
        with self._writing() as connection:
            if died_in is not None and died_in[0] in self._task_ids:
                mine = {"of_task": self._task_ids[died_in[0]], "of_key": died_in[1]}
                connection.execute(_BLAME, mine)
                connection.execute(
                    _CLOSE_ATTEMPT,
                    {**mine, "how": RUNNER_DIED, "why": "the run died in this document", "now": now},
                )
            run = connection.execute(
                runs.insert().values(started_at=now, facts=dict(facts))
            ).inserted_primary_key
            assert run is not None
            connection.execute(
                attempts.update()
                .where(attempts.c.outcome.is_(None))
                .values(
                    outcome="interrupted", detail="the run ended without ending this attempt", ended_at=now
                )
            )
            connection.execute(work.update().where(work.c.state == "running").values(state="pending"))
            return int(run[0])

    def annotate_run(self, run: int, **facts: Any) -> None:
        """Add facts to a run."""
        with self._writing() as connection:
            before = connection.execute(sa.select(runs.c.facts).where(runs.c.id == run)).scalar_one()
            connection.execute(runs.update().where(runs.c.id == run).values(facts={**before, **facts}))

    def end_run(self, run: int, exit_code: int, reason: str) -> None:
        """Close a run with its outcome."""
        with self._writing() as connection:
            connection.execute(
                runs.update()
                .where(runs.c.id == run)
                .values(ended_at=time.time(), exit_code=exit_code, reason=reason)
            )

    def resolve(self, name: str, value: Any) -> Any:
        """Keep ``value`` for ``name`` unless one is kept already; returns the one that is kept."""
        with self._writing() as connection:
            connection.execute(
                insert(meta).values(name=f"resolved.{name}", value=value).on_conflict_do_nothing()
            )
        return self.resolved()[name]

    # ── tasks ───────────────────────────────────────────────────────────────────────────────────────────────

    def accept_tasks(self, jobs: Sequence[TaskJob], *, fork: bool) -> None:
        """Take the tasks of a configuration in: new ones are added, known ones found again, changed ones
        refused or forked.

        Raises JobChanged with the differences of every changed task.
        """
        with self._writing() as connection:
            if not fork:
                refuse_changed(connection, jobs)
            for job in jobs:
                versions = versions_of(connection, job)
                same = found_again(versions, job)
                if same is None:
                    self._add_version(connection, job, len(versions) + 1)
                else:
                    self._activate(connection, job.name, same.version)
        self._load_tasks()

    def _add_version(self, connection: sa.Connection, job: TaskJob, version: int) -> None:
        values = {
            "kind": job.kind,
            "fingerprint": job.fingerprint,
            "identity": dict(job.identity),
            "fields": list(job.fields),
        }
        connection.execute(tasks.insert().values(name=job.name, version=version, active=0, **values))
        self._activate(connection, job.name, version)

    def _activate(self, connection: sa.Connection, name: str, version: int) -> None:
        connection.execute(
            tasks.update()
            .where(tasks.c.name == name)
            .values(active=sa.case((tasks.c.version == version, 1), else_=0))
        )

    # ── inputs and works ────────────────────────────────────────────────────────────────────────────────────

    def start_inventory(self, run: int) -> Inventory:
        """Begin to read the source: which rows there are, and what each active task has to do about them."""
        return Inventory(
            self._writing, run, [(self._task_ids[row.job.name], row.job) for row in self.tasks()]
        )

    def pending(self, task: str, keys: Sequence[str]) -> dict[str, PendingWork]:
        """Those of ``keys`` that are to be worked on now, in their order."""
        with self._reading() as connection:
            rows = self._among(connection, task, keys)
            found = {
                row.key: PendingWork(row.key, row.attempts, row.crashes)
                for row in rows
                if row.state == "pending"
            }
        return {key: found[key] for key in keys if key in found}

    def _among(self, connection: sa.Connection, task: str, keys: Sequence[str]) -> Iterator[Any]:
        """The works of a task that have one of ``keys``."""
        for begin in range(0, len(keys), _KEYS_AT_ONCE):
            yield from connection.execute(
                _AMONG, {"of_task": self._task_ids[task], "keys": keys[begin : begin + _KEYS_AT_ONCE]}
            )

    def mark(self, run: int, works: Sequence[WorkId]) -> list[WorkId]:
        """Note durably that these are about to be worked on, so that one that takes the process down can be
        found.

        Returns those that were pending; the others are left as they are.
        """
        if not works:
            return []
        now = time.time()
        with self._writing() as connection:
            pending = self._in_state(connection, works, ("pending",))
            taken = [one for one in dict.fromkeys(works) if one in pending]
            keyed = [{"of_task": self._task_ids[task], "of_key": key} for task, key in taken]
            if keyed:
                connection.execute(_BEGIN, keyed)
                connection.execute(_OPEN_ATTEMPT, [{**row, "run": run, "now": now} for row in keyed])
            return taken

    def finish(self, run: int, outcomes: Sequence[Outcome], answered: Sequence[RecordedReply] = ()) -> None:
        """Commit how works ended and ``answered``, replies inside documents that need not end by them: all of
        it or nothing.

        Raises LedgerError when a work had ended before.
        """
        if not (outcomes or answered):
            return
        now = time.time()
        works = [(outcome.task, outcome.key) for outcome in outcomes]
        with self._writing() as connection:
            unfinished = self._in_state(connection, works, ("pending", "running"))
            for task, key in works:
                if (task, key) not in unfinished:
                    raise LedgerError(f"task {task!r} has already finished {key}, or never knew it")
                unfinished.remove((task, key))
            if answered:
                connection.execute(_KEEP_REPLY, [self._reply(*one) for one in answered])
            if outcomes:
                rows = [(self._task_ids[outcome.task], outcome) for outcome in outcomes]
                connection.execute(
                    _END,
                    [
                        {"of_task": task, "of_key": outcome.key, "now_state": outcome.state}
                        for task, outcome in rows
                    ],
                )
                connection.execute(_KEEP_RESULT, [_result(outcome, task, run, now) for task, outcome in rows])
                states = [
                    {"task_id": task, "key": outcome.key, "state": outcome.answer.features}
                    for task, outcome in rows
                    if outcome.answer is not None and outcome.answer.features
                ]
                if states:
                    connection.execute(_KEEP_FEATURES, states)
                self._keep_reading(connection, rows)
                self._close_attempts(
                    connection, [(task, outcome.key, outcome.state) for task, outcome in rows], now
                )

    @staticmethod
    def _keep_reading(connection: sa.Connection, rows: Sequence[tuple[int, Outcome]]) -> None:
        """How much of each document was computed, where that is not all that its answer has read."""
        mine = [{"of_task": task, "of_key": outcome.key} for task, outcome in rows]
        connection.execute(_FORGET_READING, mine)
        found = [
            {"task_id": task, "key": outcome.key, "computed_tokens": outcome.read_tokens}
            for task, outcome in rows
            if outcome.answer is not None and outcome.read_tokens not in (None, outcome.answer.tokens_in)
        ]
        if found:
            connection.execute(reading.insert(), found)

    def _in_state(
        self, connection: sa.Connection, works: Sequence[WorkId], states: Sequence[str]
    ) -> set[WorkId]:
        """Those of ``works`` that are in one of ``states``."""
        keys: dict[str, list[str]] = {}
        for task, key in works:
            keys.setdefault(task, []).append(key)
        return {
            (task, row.key)
            for task, mine in keys.items()
            for row in self._among(connection, task, mine)
            if row.state in states
        }

    # as its siblings
    def drop(self, run: int, works: Sequence[WorkId], outcome: str, detail: str) -> None:  # noqa: ARG002
        """Close attempts that gave no result; their works are pending again. Only ``crashed`` counts against
        a document.
        """
        keyed = [(self._task_ids[task], key) for task, key in works]
        with self._writing() as connection:
            for task, key in keyed:
                more = {"crashes": work.c.crashes + 1} if outcome == "crashed" else {}
                mine = (work.c.task_id == task, work.c.key == key, work.c.state == "running")
                connection.execute(work.update().where(*mine).values(state="pending", **more))
            self._close_attempts(
                connection, [(task, key, outcome) for task, key in keyed], time.time(), detail
            )

    @staticmethod
    def _close_attempts(
        connection: sa.Connection,
        ended: Sequence[tuple[int, str, str]],
        now: float,
        detail: str | None = None,
    ) -> None:
        rows = [
            {"of_task": task, "of_key": key, "how": outcome, "why": detail, "now": now}
            for task, key, outcome in ended
        ]
        if rows:
            connection.execute(_CLOSE_ATTEMPT, rows)

    def retry(
        self, names: Collection[str] | None = None, states: Collection[str] = ("failed", "quarantined")
    ) -> int:
        """Set failed and quarantined works of the active tasks back to pending; returns how many. Their
        history stays.
        """
        unknown = sorted(set(names or ()) - set(self._task_ids))
        if unknown:
            raise UsageError(
                f"there is no task {unknown[0]!r} in this run directory; it has "
                f"{', '.join(sorted(self._task_ids))}"
            )
        chosen = [task for name, task in self._task_ids.items() if names is None or name in names]
        with self._writing() as connection:
            mine = (work.c.task_id.in_(chosen), work.c.state.in_(states))
            return connection.execute(work.update().where(*mine).values(state="pending", crashes=0)).rowcount

    # ── replies inside documents ────────────────────────────────────────────────────────────────────────────

    def _reply(self, of: WorkId, step: Step, generation: Generation) -> dict[str, Any]:
        return {
            "task_id": self._task_ids[of[0]],
            "key": of[1],
            "step_key": step.key,
            "name": step.name,
            "span_start": step.span[0] if step.span else None,
            "span_end": step.span[1] if step.span else None,
            "generation": {
                **pack_generation(generation),
                "features": base64.b64encode(generation.features).decode(),
            },
        }

    # ── views, and what people gave ─────────────────────────────────────────────────────────────────────────

    def keep_view(
        self, task: str, calibration: str, threshold: float | None, facts: Mapping[str, Any]
    ) -> ViewRow:
        """Keep a view, which is not shown by that; one that is the latest already is not kept twice."""
        known = self.views(task)
        same = (calibration, threshold, dict(facts))
        if known and (known[-1].calibration, known[-1].threshold, known[-1].facts) == same:
            return known[-1]
        with self._writing() as connection:
            return view_rows.add_view(connection, self._task_ids[task], calibration, threshold, facts)

    def show_view(self, task: str, number: int, by: ShownBy, *, held: bool) -> None:
        """Let the view of that number, 0 for what the model said itself, be the one shown. ``held``: also
        after the next run.
        """
        shown = self.shown_view(task)
        if shown is None or (shown.number, shown.by, shown.held) != (number, by, held):
            with self._writing() as connection:
                view_rows.show_view(connection, self._task_ids[task], number, by, held=held)

    def delete_view(self, task: str, number: int) -> None:
        """Forget a view, which must not be the one shown. Its number stays taken."""
        with self._writing() as connection:
            view_rows.delete_view(connection, self._task_ids[task], number)

    def keep_labels(self, task: str, labels: Collection[KeptLabel], without: Collection[str] = ()) -> None:
        """Keep labels that people gave, in place of those that their documents have, and forget those of the
        ids in ``without``.
        """
        if labels or without:
            with self._writing() as connection:
                gold_rows.remove_labels(connection, task, without)
                gold_rows.keep_labels(connection, task, labels)

    # ── the file ────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect().execution_options(writing=True) as connection, connection.begin():
                yield connection
        except OperationalError as error:
            if disk_refuses(error):
                raise stopped_by(error) from None
            raise

    def _check_format(self, path: Path, *, write: bool) -> None:
        """Make the tables in a new file, and those that an older one lacks; change nothing in one that is not
        ours.
        """
        names = set(sa.inspect(self._engine).get_table_names())
        if not names and write:
            with self._writing() as connection:
                metadata.create_all(connection)
                connection.execute(
                    insert(meta).values(name="format", value=newest_format()).on_conflict_do_nothing()
                )
        elif "meta" not in names or "work" not in names:
            raise UsageError(f"{path} is a database, but not a ledger of ours; choose another run.directory")
        found = check_format(path, recorded_format(self._engine), self._engine)
        if write:
            use_write_ahead_log(self._engine)
        missing = missing_tables(self._engine)
        if found == newest_format() and not missing:
            return
        if not write:
            stand_in(self._engine, path, found, missing)
            return
        with self._writing() as connection:
            upgrade(connection, path)

    def _load_tasks(self) -> None:
        with self._reading() as connection:
            active = connection.execute(
                sa.select(tasks.c.name, tasks.c.id).where(tasks.c.active == 1).order_by(tasks.c.id)
            )
            self._task_ids = {row.name: row.id for row in active}


def _result(outcome: Outcome, task: int, run: int, now: float) -> dict[str, Any]:
    answer, failure = outcome.answer, outcome.failure
    assert set(STATES) >= {outcome.state}
    return {
        "task_id": task,
        "key": outcome.key,
        "run_id": run,
        "recorded_at": now,
        "value": answer.value if answer else None,
        "finish_reason": answer.finish_reason if answer else None,
        "probabilities": dict(answer.probabilities) if answer and answer.probabilities is not None else None,
        "scores": dict(answer.scores) if answer and answer.scores is not None else None,
        "raw": answer.raw if answer else failure.raw if failure else None,
        "tokens_in": answer.tokens_in if answer else 0,
        "tokens_out": answer.tokens_out if answer else 0,
        "tokens_dropped": answer.tokens_dropped if answer else 0,
        "parts": answer.parts if answer else 0,
        "notes": list(answer.notes) if answer and answer.notes else None,
        "failure_kind": failure.kind if failure else None,
        "failure_message": failure.message if failure else None,
        "failure_attempt": failure.attempt if failure else None,
        "seconds": outcome.seconds,
        "placement": outcome.placement,
        "batch_rows": outcome.batch_rows,
    }
