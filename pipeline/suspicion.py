"""Who took the worker down? Works that were being computed when it died are suspects: looked at after all others, in halves, then alone.

Pure bookkeeping. A work is guilty when it died alone and has at least ``max_attempts`` deaths behind it; it is given back to be
quarantined, and every group shrinks with each death, so the search ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.flight import WorkId
from pipeline.records import Document
from pipeline.tasks import Task

# A work begun so often without an end may have taken the runner itself down each time: it goes last and alone.
_OFTEN = 4


@dataclass(frozen=True, slots=True)
class Pending:
    """One task's work on one document, to be done in this run. ``crashes`` counts workers that died of it or beside it.

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


class Suspicion:
    """Groups of suspects still to be tried, smaller after each death."""

    def __init__(self, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self._groups: deque[list[Pending]] = deque()

    def set_aside(self, work: Pending) -> None:
        """A doubtful work of an earlier run: it will be tried alone."""
        self._groups.append([work])

    def accuse(self, suspects: Sequence[Pending]) -> Pending | None:
        """The worker died while it computed ``suspects`` (their crashes count this death). Returns the guilty one, if that is known now."""
        if len(suspects) == 1 and suspects[0].crashes >= self._max_attempts:
            return suspects[0]
        half = (len(suspects) + 1) // 2
        self._groups.extend(list(group) for group in (suspects[:half], suspects[half:]) if group)
        return None

    def next_group(self) -> list[Pending] | None:
        """The works to try next, apart from all others."""
        return self._groups.popleft() if self._groups else None


def by_document(works: Sequence[Pending]) -> Iterator[Pending]:
    """``works`` with those on one document side by side, in the order of the documents' first ones: what is read for one serves all."""
    grouped: dict[str, list[Pending]] = {}
    for work in works:
        grouped.setdefault(work.document.key, []).append(work)
    for group in grouped.values():
        for number, work in enumerate(group, start=1):
            yield replace(work, awaited=len(group) - number)
