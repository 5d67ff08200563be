"""What can be read off a ledger: counts, rows for the export, facts for the report. Queries only; all take an
open connection.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from pipeline.errors import LedgerError
from pipeline.records import STATES, FieldValue, TaskJob
from pipeline.stores.ledger.schema import (
    features,
    in_reading,
    inputs,
    inventories,
    reading,
    rejects,
    replies,
    results,
    tasks,
    work,
)
from pipeline.stores.ledger.unread import LEFT_OUT, UNREADABLE, in_order
from pipeline.system.units import counted

_BLOCK_ROWS = 400
# a reading that sees a repeated row has seen the first one: these are the distinct documents
_FIRST = inputs.c.occurrence == 0
EMPTY_TEXT = "empty text: the document has nothing to read"


@dataclass(frozen=True, slots=True)
class Status:
    """Counts of what is present. ``documents`` are distinct texts under their ids, ``duplicates`` rows that
    repeat one exactly. The source was ``read_completely`` unless the run was ``limited`` or files could not
    be read to their end; ``unreadable_rows`` of these, and ``left_out_rows``, are as they were before.
    """

    documents: int
    rejected: int
    duplicates: int
    clashing_ids: int
    read_completely: bool
    limited: bool
    unreadable_files: int
    unreadable_rows: int
    left_out_rows: int
    tasks: Mapping[str, Mapping[str, int]]

    @property
    def unread(self) -> bool:
        """Whether there are rows that the last run has not seen."""
        return bool(self.unreadable_rows or self.left_out_rows)

    @property
    def unreadable(self) -> str:
        """How many files could not be read to their end, in words."""
        its = "its" if self.unreadable_files == 1 else "their"
        return f"{counted(self.unreadable_files, 'file')} could not be read to {its} end"

    @property
    def sentences(self) -> list[str]:
        """What is to be known of the reading besides its counts."""
        told = []
        if self.unreadable_files:
            rows = counted(self.unreadable_rows, "row")
            kept = f": {rows} shown as of an earlier run" if self.unreadable_rows else ""
            told.append(f"{self.unreadable}{kept}")
        if self.limited:
            rows = counted(self.left_out_rows, "row")
            kept = f"; {rows} shown as of an earlier run" if self.left_out_rows else ""
            told.append(f"the rest of the source was left out (--limit){kept}")
        return told

    @property
    def complete(self) -> bool:
        """The source was read to its end and nothing is left to do."""
        return self.read_completely and not any(
            states["pending"] or states["running"] for states in self.tasks.values()
        )

    def at_rest(self) -> Status:
        """The same while nobody computes: what is marked as running is pending."""
        tasks = {
            name: {**states, "pending": states["pending"] + states["running"], "running": 0}
            for name, states in self.tasks.items()
        }
        return replace(self, tasks=tasks)

    def to_json(self) -> dict[str, Any]:
        """The object that ``overnight status --json`` prints."""
        unreadable = {
            "files": self.unreadable_files,
            "rows": self.unreadable_rows,
            "sentence": self.sentences[0] if self.unreadable_files else "",
        }
        return {
            "documents": self.documents,
            "rejected": self.rejected,
            "duplicates": self.duplicates,
            "complete": self.complete,
            **({"unreadable": unreadable} if self.unreadable_files else {}),
            "tasks": {name: dict(states) for name, states in self.tasks.items()},
        }


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task of the ledger: its job and which version of its name it is."""

    job: TaskJob
    version: int


@dataclass(frozen=True, slots=True)
class InputRow:
    """A row of the source as the ledger knows it. ``occurrence``: how many rows before it repeat it;
    ``unread``: why the last reading has not seen it, see ``pipeline.stores.ledger.unread``.
    """

    id: str
    document_key: str
    ordinal: int
    file: str
    line: int
    offset: int | None
    fields: Mapping[str, FieldValue]
    characters: int
    occurrence: int = 0
    unread: str | None = None

    def work_key(self, job: TaskJob) -> str:
        """Key of a task's work on this row."""
        return job.key_of(self.document_key, self.fields)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task's state and, once it has ended, its result on one document."""

    state: str
    value: Any = None
    finish_reason: str | None = None
    probabilities: Mapping[str, float] | None = None
    error: str | None = None
    scores: Mapping[str, float] | None = None
    features: bytes = b""


@dataclass(frozen=True, slots=True)
class DocumentScores:
    """A document that a label task has finished: an id it came under, and its uncalibrated scores by label
    (natural logs).

    ``features`` are what the model made of it, little-endian float16; empty where they were not kept.
    """

    id: str
    document_key: str
    scores: Mapping[str, float]
    features: bytes = b""


@dataclass(frozen=True, slots=True)
class ExportRow:
    """One input with the results of every active task, by task name."""

    input: InputRow
    results: Mapping[str, TaskResult]

    def at_rest(self) -> ExportRow:
        """The same while nobody computes: what is marked as running is pending."""
        if not any(result.state == "running" for result in self.results.values()):
            return self
        waiting = TaskResult("pending")
        return replace(
            self,
            results={
                name: waiting if result.state == "running" else result
                for name, result in self.results.items()
            },
        )


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A reply inside a document: the step's name, the characters it read, and the packed generation."""

    name: str
    span: tuple[int, int] | None
    generation: Mapping[str, Any]


def answer_probability(value: Any, probabilities: Mapping[str, float] | None) -> float | None:
    """Of a label its probability, abstained or not that of the best; of several labels that of the least
    certain yes or no.
    """
    known = {name: number for name, number in (probabilities or {}).items() if math.isfinite(number)}
    if not known or len(known) < len(probabilities or {}):
        return None
    if isinstance(value, list):
        return min(max(number, 1 - number) for number in known.values())
    return known.get(value) if value is not None else max(known.values())


def presence(connection: sa.Connection) -> int:
    """The reading that counts, the latest that was settled: its rows are what is present. 0 before there is
    one.
    """
    latest = connection.execute(
        sa.select(sa.func.max(inventories.c.id)).where(inventories.c.settled == 1)
    ).scalar_one_or_none()
    return int(latest or 0)


def present(reading: int) -> sa.ColumnElement[bool]:
    """Whether a work is one of the documents present in that reading."""
    return (work.c.inventory_id == reading) | (work.c.kept_id == reading)


def states_seen(connection: sa.Connection, task: int) -> dict[str, int]:
    """Works by state among those that the reading that counts has seen."""
    query = sa.select(work.c.state, sa.func.count()).where(
        work.c.task_id == task, work.c.inventory_id == presence(connection)
    )
    counted: dict[str, int] = dict.fromkeys(map(str, STATES), 0)
    counted.update((state, count) for state, count in connection.execute(query.group_by(work.c.state)))
    return counted


def expects_work(connection: sa.Connection) -> bool:
    """Whether the latest reading was limited or came to no end, or has seen works that are not finished."""
    last = _reading(connection, sa.true())
    if last is None or last.limited or not last.settled:
        return True
    tasks_now = sa.select(tasks.c.id).where(tasks.c.active == 1)
    undone = sa.select(work.c.key).where(
        work.c.task_id.in_(tasks_now),
        work.c.state.in_(("pending", "running")),
        work.c.inventory_id == last.id,
    )
    return connection.execute(undone.limit(1)).first() is not None


def active_tasks(connection: sa.Connection) -> list[TaskRow]:
    """Active tasks, in the order in which their names came: a fork stays in its place."""
    return [
        TaskRow(TaskJob(row.name, row.kind, row.identity, tuple(row.fields)), row.version)
        for row in _active(connection)
    ]


def status(connection: sa.Connection) -> Status:
    """Count everything. Raises LedgerError when a task's works are not those of the inputs."""
    reading = presence(connection)
    here = inputs.c.inventory_id == reading
    rows, documents, unreadable, left_out = connection.execute(
        sa.select(
            sa.func.count(),
            sa.func.count().filter(_FIRST),
            sa.func.count().filter(inputs.c.unread == UNREADABLE),
            sa.func.count().filter(inputs.c.unread == LEFT_OUT),
        ).where(here)
    ).one()
    clashes = sa.select(inputs.c.id).where(here, _FIRST).group_by(inputs.c.id).having(sa.func.count() > 1)
    counts = _reading(connection, inventories.c.id == reading)
    latest = _reading(connection, sa.true())
    complete = bool(counts and counts.complete)
    return Status(
        documents=documents,
        rejected=latest.rejected if latest else 0,
        duplicates=rows - documents,
        clashing_ids=connection.execute(
            sa.select(sa.func.count()).select_from(clashes.subquery())
        ).scalar_one(),
        read_completely=complete,
        limited=bool(counts and counts.limited),
        unreadable_files=counts.damaged if counts else 0,
        unreadable_rows=unreadable,
        left_out_rows=left_out,
        tasks={
            row.name: _task_states(connection, row, reading, documents, complete)
            for row in _active(connection)
        },
    )


def _reading(connection: sa.Connection, which: sa.ColumnElement[bool]) -> Any:
    """The latest reading of which that holds."""
    query = sa.select(inventories).where(which).order_by(inventories.c.id.desc()).limit(1)
    return connection.execute(query).one_or_none()


def _task_states(
    connection: sa.Connection, task: Any, reading: int, documents: int, read_completely: bool
) -> dict[str, int]:
    """Works by state. Documents that a task has not come to yet, because it was added after they were read,
    are pending.
    """
    states = dict.fromkeys(STATES, 0) | _states(connection, task.id, reading)
    works = sum(states.values())
    mine = (work.c.task_id == task.id, present(reading))
    known = (
        connection.execute(
            sa.select(sa.func.count(sa.distinct(work.c.document_key))).where(*mine)
        ).scalar_one()
        if task.fields
        else works
    )
    if known > documents or (known < documents and known and read_completely):
        raise LedgerError(
            f"the ledger does not add up: task {task.name!r} knows {known:,} of {documents:,} documents"
        )
    return {**states, "pending": states["pending"] + documents - known}


def _states(connection: sa.Connection, task: int, reading: int) -> dict[str, int]:
    query = sa.select(work.c.state, sa.func.count().label("works")).where(
        work.c.task_id == task, present(reading)
    )
    return {row.state: row.works for row in connection.execute(query.group_by(work.c.state))}


def export_rows(connection: sa.Connection) -> Iterator[ExportRow]:
    """Present inputs in reading order, block by block."""
    jobs = [(row.id, TaskJob(row.name, row.kind, {}, tuple(row.fields))) for row in _active(connection)]
    query = sa.select(inputs).where(inputs.c.inventory_id == presence(connection)).order_by(*in_order())
    for block in connection.execution_options(yield_per=_BLOCK_ROWS).execute(query).partitions():
        found = [_input(row) for row in block]
        by_task = {
            job.name: _results(connection, task, [row.work_key(job) for row in found]) for task, job in jobs
        }
        for row in found:
            yield ExportRow(
                row,
                {
                    job.name: by_task[job.name].get(row.work_key(job), TaskResult("pending"))
                    for _, job in jobs
                },
            )


def _active(connection: sa.Connection) -> Sequence[Any]:
    other = tasks.alias()
    first = sa.select(sa.func.min(other.c.id)).where(other.c.name == tasks.c.name).scalar_subquery()
    return connection.execute(sa.select(tasks).where(tasks.c.active == 1).order_by(first)).all()


def _input(row: Any) -> InputRow:
    return InputRow(
        row.id,
        row.document_key,
        row.ordinal,
        row.file,
        row.line,
        row.offset,
        row.fields or {},
        row.characters,
        row.occurrence,
        row.unread,
    )


def _results(connection: sa.Connection, task: int, keys: Sequence[str]) -> dict[str, TaskResult]:
    joined = work.outerjoin(results, (results.c.task_id == work.c.task_id) & (results.c.key == work.c.key))
    columns = (
        work.c.key,
        work.c.state,
        results.c.value,
        results.c.finish_reason,
        results.c.probabilities,
        results.c.scores,
        results.c.failure_kind,
        results.c.failure_message,
    )
    joined, state = _with_features(connection, joined)
    query = sa.select(*columns, state).select_from(joined)
    rows = connection.execute(query.where(work.c.task_id == task, work.c.key.in_(set(keys))))
    return {row.key: _result(row) for row in rows}


def _result(row: Any) -> TaskResult:
    if row.state == "done":
        return TaskResult(
            row.state,
            row.value,
            row.finish_reason,
            row.probabilities,
            scores=row.scores,
            features=row.features,
        )
    if row.state in ("failed", "quarantined"):
        return TaskResult(row.state, error=f"{row.failure_kind}: {row.failure_message}")
    return TaskResult(row.state, error=EMPTY_TEXT if row.state == "skipped" else None)


def _with_features(connection: sa.Connection, joined: Any) -> tuple[Any, sa.Label[Any]]:
    """``joined`` with the works' features, and the column that they are in: empty bytes where none were kept,
    as in older ledgers.
    """
    nothing = sa.literal(b"", sa.LargeBinary)
    if not sa.inspect(connection).has_table(features.name):
        return joined, nothing.label("features")
    joined = joined.outerjoin(
        features, (features.c.task_id == work.c.task_id) & (features.c.key == work.c.key)
    )
    return joined, sa.func.coalesce(features.c.state, nothing).label("features")


def scored(connection: sa.Connection, task: int, *, with_features: bool = False) -> Iterator[DocumentScores]:
    """Present documents that a label task has finished, a text once, in the order of their keys."""
    reading = presence(connection)
    joined = work.join(results, (results.c.task_id == work.c.task_id) & (results.c.key == work.c.key)).join(
        inputs, inputs.c.document_key == work.c.document_key
    )
    state: sa.Label[Any] = sa.literal(b"", sa.LargeBinary).label("features")
    if with_features:
        joined, state = _with_features(connection, joined)
    query = (
        sa.select(inputs.c.id, work.c.document_key, results.c.scores, state)
        .select_from(joined)
        .where(
            work.c.task_id == task,
            work.c.state == "done",
            present(reading),
            inputs.c.inventory_id == reading,
            _FIRST,
        )
        .order_by(work.c.key)
    )
    for row in connection.execution_options(yield_per=_BLOCK_ROWS).execute(query):
        if row.scores:
            yield DocumentScores(row.id, row.document_key, row.scores, row.features)


def rejected_rows(connection: sa.Connection) -> Iterator[dict[str, Any]]:
    """Rejected rows of the latest inventory."""
    for row in connection.execution_options(yield_per=_BLOCK_ROWS).execute(
        sa.select(rejects).order_by(sa.literal_column("rowid"))
    ):
        yield {
            "file": row.file,
            "line": row.line,
            "offset": row.offset,
            "reason": row.reason,
            "excerpt": row.excerpt,
        }


def count_rows(connection: sa.Connection) -> int:
    """Present inputs, repeated ones counted as often as they are there."""
    here = inputs.c.inventory_id == presence(connection)
    return int(connection.execute(sa.select(sa.func.count()).select_from(inputs).where(here)).scalar_one())


def rows_among(connection: sa.Connection, document_keys: Collection[str]) -> dict[str, int]:
    """Those of the documents that are present, with how many inputs each has."""
    here = in_reading(inputs, presence(connection))
    query = sa.select(inputs.c.document_key, sa.func.count().label("rows")).where(
        here, inputs.c.document_key.in_(document_keys)
    )
    return {row.document_key: row.rows for row in connection.execute(query.group_by(inputs.c.document_key))}


def inputs_of(connection: sa.Connection, document_id: str) -> list[InputRow]:
    """Present inputs with this id, in reading order, a text once."""
    query = sa.select(inputs).where(
        inputs.c.id == document_id, in_reading(inputs, presence(connection)), _FIRST
    )
    return [_input(row) for row in connection.execute(query.order_by(inputs.c.ordinal))]


def recorded_steps(connection: sa.Connection, task: int, key: str) -> list[RecordedStep]:
    """Replies recorded inside a work."""
    query = sa.select(replies).where(replies.c.task_id == task, replies.c.key == key)
    return [
        RecordedStep(
            row.name, None if row.span_start is None else (row.span_start, row.span_end), row.generation
        )
        for row in connection.execute(query.order_by(replies.c.span_start, replies.c.name))
    ]


def task_results(
    connection: sa.Connection, task: int, *, scores: bool = False
) -> Iterator[Mapping[str, Any]]:
    """Results of a task's present works: what reports need of every row, with ``state``, ``characters``, the
    ``attempts`` made, how many of the document's tokens were ``computed`` for it, and how many characters the
    steps of a document in parts ``covered``. Raw texts and, unless wanted, ``scores`` and features, the bulk
    of a row, stay away; so do ids, which are asked for with ``some_id`` where they are shown.
    """
    joined = work.join(
        results, (results.c.task_id == work.c.task_id) & (results.c.key == work.c.key)
    ).outerjoin(reading, (reading.c.task_id == work.c.task_id) & (reading.c.key == work.c.key))
    shown: list[sa.ColumnElement[Any]] = [
        column for column in results.c if column.name != "raw" and (scores or column.name != "scores")
    ]
    of_work = (
        work.c.state,
        work.c.characters,
        work.c.characters.label("covered"),
        work.c.document_key,
        work.c.attempts,
        sa.func.coalesce(reading.c.computed_tokens, results.c.tokens_in).label("computed"),
    )
    if scores:
        joined, state = _with_features(connection, joined)
        shown.append(state)
    query = (
        sa.select(*shown, *of_work)
        .select_from(joined)
        .where(
            work.c.task_id == task,
            present(presence(connection)),
            work.c.state.notin_(("pending", "running")),
        )
    )
    row: Any  # a mapping by column names
    for row in connection.execution_options(yield_per=_BLOCK_ROWS).execute(query).mappings():
        yield {**row, "covered": _covered(connection, task, row["key"])} if row["parts"] > 1 else row


def some_id(connection: sa.Connection, document_key: str) -> str:
    """An id under which a document was read, the first in their order."""
    return str(
        connection.execute(
            sa.select(sa.func.min(inputs.c.id)).where(inputs.c.document_key == document_key)
        ).scalar_one()
    )


def _covered(connection: sa.Connection, task: int, key: str) -> int:
    """Characters in the union of the spans that a work's recorded steps have read."""
    spans = sa.select(replies.c.span_start, replies.c.span_end).where(
        replies.c.task_id == task, replies.c.key == key, replies.c.span_start.is_not(None)
    )
    covered = reached = 0
    for start, end in connection.execute(spans.order_by(replies.c.span_start)):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def clashing_ids(connection: sa.Connection, limit: int) -> list[tuple[str, int]]:
    """Ids that stand for several texts, with how many; the first ``limit`` by id."""
    texts = sa.func.count()
    here = (inputs.c.inventory_id == presence(connection), _FIRST)
    query = sa.select(inputs.c.id, texts).where(*here).group_by(inputs.c.id).having(texts > 1)
    return [(name, count) for name, count in connection.execute(query.order_by(inputs.c.id).limit(limit))]


def features_of(connection: sa.Connection, task: int, key: str) -> bytes:
    """What the model made of a document; empty where it was not kept."""
    if not sa.inspect(connection).has_table(features.name):
        return b""
    found = connection.execute(
        sa.select(features.c.state).where(features.c.task_id == task, features.c.key == key)
    ).scalar_one_or_none()
    return bytes(found or b"")


def one_result(connection: sa.Connection, task: int, key: str) -> dict[str, Any] | None:
    """Every column of one work's result, with its state and attempts."""
    joined = work.outerjoin(results, (results.c.task_id == work.c.task_id) & (results.c.key == work.c.key))
    kept = [column for column in results.c if column.name not in ("task_id", "key")]
    query = sa.select(work.c.state, work.c.attempts, work.c.crashes, *kept).select_from(joined)
    row = connection.execute(query.where(work.c.task_id == task, work.c.key == key)).mappings().one_or_none()
    return None if row is None else dict(row)
