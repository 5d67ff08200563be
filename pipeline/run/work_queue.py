"""What is to be asked next: one task's work on one document, in which order, and how much of it at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.records import Document, WorkId
from pipeline.tasks import Task

# A work begun so often without an end may have taken the runner itself down each time: it goes last and
# alone.
_OFTEN = 4
# As much is tokenized before the worker is looked after again: about half a second's worth, or one document
# that is larger.
_GROUP_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One task's work on one document, to be done in this run. ``crashes`` counts workers that died of it or
    beside it.

    ``awaited`` tasks after this one are still to read the same document in this run.
    """

    task: Task
    document: Document
    attempts: int = 0
    crashes: int = 0
    awaited: int = 0

    @property
    def id(self) -> WorkId:
        """(task name, work key)."""
        return self.task.job.name, self.task.job.key(self.document)

    @property
    def doubtful(self) -> bool:
        """Whether what earlier runs recorded is reason enough to try it apart from the others."""
        return self.crashes > 0 or self.attempts >= _OFTEN


def by_document(works: Sequence[WorkItem]) -> Iterator[WorkItem]:
    """``works`` with those on one document side by side, in the order of the documents' first ones: what is
    read for one serves all.
    """
    grouped: dict[str, list[WorkItem]] = {}
    for work in works:
        grouped.setdefault(work.document.key, []).append(work)
    for group in grouped.values():
        for number, work in enumerate(group, start=1):
            yield replace(work, awaited=len(group) - number)


def next_group(works: Iterator[WorkItem | None], size: int) -> tuple[list[WorkItem], bool]:
    """At most ``size`` works, and whether that was all. Ends early after much text, and after each block of
    the source: neither tokenizing nor reading on and on keeps the model waiting.
    """
    group: list[WorkItem] = []
    characters = 0
    for work in works:
        if work is None:
            return group, False
        group.append(work)
        characters += len(work.document.text)
        if len(group) == size or characters >= _GROUP_CHARACTERS:
            return group, False
    return group, True
