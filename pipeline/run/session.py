"""A run that the ledger has accepted and begun: what it begins, records and gives back, under its number."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pipeline.config import Config
from pipeline.prepare.prepare import Preparation, meant_by_auto
from pipeline.records import Failure, Outcome, WorkId
from pipeline.run.commit_buffer import CommitBuffer
from pipeline.run.work_queue import WorkItem
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import RunDirectory
from pipeline.system.versions import stack_versions
from pipeline.tasks.driver import Reply

_WORTH_ANOTHER_LOOK = ("model_error", "out_of_memory", "fault", "stalled")


class RunSession:
    """Run ``number`` of a ledger. Works that are begun are ``under_way`` until they are recorded or given
    back.
    """

    def __init__(self, ledger: Ledger, number: int, directory: RunDirectory) -> None:
        self.ledger = ledger
        self.number = number
        self.under_way: dict[WorkId, WorkItem] = {}
        self._directory = directory
        self._buffer = CommitBuffer(ledger, number)

    @property
    def characters(self) -> int:
        """Of the documents that are held in memory for works under way."""
        return sum(len(work.document.text) for work in self.under_way.values())

    def annotate(self, **facts: Any) -> None:
        """Note facts of the run for its report."""
        self.ledger.annotate_run(self.number, **facts)

    def begin(self, works: Sequence[WorkItem]) -> list[WorkItem]:
        """Mark attempts, durably. Returns the works whose attempts they are: the others are repeated rows,
        done or begun since the ledger was asked.
        """
        ids = [work.id for work in works]
        taken = set(self.ledger.mark(self.number, list(dict.fromkeys(ids))))
        begun: list[WorkItem] = []
        for work_id, work in zip(ids, works, strict=True):
            if work_id in taken and work_id not in self.under_way:
                self.under_way[work_id] = work
                begun.append(work)
        return begun

    def add(self, outcomes: Sequence[Outcome], replies: Sequence[Reply] = ()) -> None:
        """Documents that landed, and replies inside documents; they count once they are committed."""
        self._buffer.add([self._explained(outcome) for outcome in outcomes], replies)

    def commit(self, *, at_once: bool = False) -> list[Outcome]:
        """Commit what was added, a second's worth in one transaction; returns the outcomes recorded by it."""
        recorded = self._buffer.commit(at_once=at_once)
        for outcome in recorded:
            del self.under_way[outcome.task, outcome.key]
        return recorded

    def give_back(self, works: Sequence[WorkId], outcome: str, detail: str) -> list[WorkItem]:
        """Close the attempts of works that gave no result; they are pending again."""
        self.ledger.drop(self.number, works, outcome, detail)
        return [self.under_way.pop(work) for work in works]

    def quarantine(self, work: WorkItem, failure: Failure) -> Outcome:
        """Record that a work is not tried again, and how to see why."""
        task, key = work.id
        told = replace(failure, message=f"{failure.message}. {self._again(work)}")
        outcome = Outcome(task, key, "quarantined", failure=told)
        self.ledger.finish(self.number, [outcome])
        return outcome

    def end(self, exit_code: int, reason: str) -> None:
        """Write down how the run ended: what it had begun and not finished is pending again, not running."""
        self.give_back(list(self.under_way), "interrupted", reason)
        self.ledger.end_run(self.number, exit_code, reason)

    def _explained(self, outcome: Outcome) -> Outcome:
        """A failure that is no property of the text comes with the command that shows it again."""
        if outcome.failure is None or outcome.failure.kind not in _WORTH_ANOTHER_LOOK:
            return outcome
        again = self._again(self.under_way[outcome.task, outcome.key])
        message = f"{outcome.failure.message.rstrip('.')}. {again}"
        return replace(outcome, failure=replace(outcome.failure, message=message))

    def _again(self, work: WorkItem) -> str:
        return f"To see it again: {self._directory.reproducing(work.document.id)}"


def begin_session(
    config: Config,
    directory: RunDirectory,
    ledger: Ledger,
    prepared: Preparation,
    resolved: Mapping[str, Any],
    *,
    fork: bool,
    died_in: WorkId | None,
) -> RunSession:
    """Have the ledger accept the tasks, keep what ``auto`` meant, and begin a run. What was asked for by name
    says nothing about what ``auto`` means. Raises JobChanged.
    """
    ledger.accept_tasks([task.job for task in prepared.tasks], fork=fork)
    for name in meant_by_auto(config):
        ledger.resolve(name, resolved[name])
    facts = {
        "pid": os.getpid(),
        "command": sys.argv,
        "config": config.anywhere().model_dump(mode="json"),
        "versions": stack_versions(),
        "model": {"id": config.model.id, "revision": config.model.revision, **prepared.identity["model"]},
        "notes": list(prepared.notes),
        "plan": asdict(prepared.plan),
    }
    return RunSession(ledger, ledger.begin_run(facts, died_in), directory)
