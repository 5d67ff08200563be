"""Documents, jobs and outcomes for tests of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.records import Answer, Document, Failure, FieldValue, Origin, Outcome, Reject, TaskJob
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.unread import Stop

LONG = (
    "Read the report with care. Decide which of the categories it belongs to. Answer in one word and "
    "nothing else."
)


def job(name: str = "topic", words: str = "Which?", fields: tuple[str, ...] = (), **task: Any) -> TaskJob:
    kind = task.pop("kind", "label")
    return TaskJob(
        name, kind, {"model": {"id": "m"}, "instructions": words, "task": {"kind": kind, **task}}, fields
    )


def document(name: str, text: str | None = None, line: int = 1, **fields: FieldValue) -> Document:
    return Document(
        name, f"text of {name}" if text is None else text, Origin("in.jsonl", line, 10 * line), fields
    )


def documents(count: int, first: int = 0) -> list[Document]:
    return [document(f"d{number:06}", line=number + 1) for number in range(first, first + count)]


def reject(line: int, reason: str = "not an object") -> Reject:
    return Reject(Origin("in.jsonl", line, 10 * line), reason, "12")


def done(task: str, key: str, value: Any = "world", **answer: Any) -> Outcome:
    probabilities: Mapping[str, float] | None = answer.pop("probabilities", {"world": 0.75, "sports": 0.25})
    placed = {name: answer.pop(name) for name in ("seconds", "placement", "batch_rows") if name in answer}
    known = {"finish_reason": "stop", "tokens_in": 10, "tokens_out": 2, **answer}
    return Outcome(task, key, "done", Answer(value, probabilities=probabilities, **known), **placed)


def failed(task: str, key: str, state: Any = "failed", message: str = "it broke") -> Outcome:
    return Outcome(task, key, state, failure=Failure("broken", message))


def read(
    ledger: Ledger,
    run: int,
    rows: Sequence[Document],
    rejects: Sequence[Reject] = (),
    *,
    complete: bool = True,
) -> None:
    inventory = ledger.start_inventory(run)
    inventory.enter([*rows, *rejects])
    inventory.finish(None if complete else Stop())


def begun(ledger: Ledger, rows: Sequence[Document], *jobs: TaskJob) -> int:
    """A run with its inputs read."""
    ledger.accept_tasks(jobs or [job()], fork=False)
    run = ledger.begin_run({})
    read(ledger, run, rows)
    return run
