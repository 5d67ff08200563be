"""Who took the worker down? Works that were being computed when it died are suspects: looked at after all
others, in halves, then alone.

Pure bookkeeping. A work is guilty when it died alone and has at least ``max_attempts`` deaths behind it; it
is given back to be quarantined, and every group shrinks with each death, so the search ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pipeline.run.work_queue import WorkItem


class FaultIsolation:
    """Groups of suspects still to be tried, smaller after each death."""

    def __init__(self, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self._groups: deque[list[WorkItem]] = deque()

    def set_aside(self, work: WorkItem) -> None:
        """A doubtful work of an earlier run: it will be tried alone."""
        self._groups.append([work])

    def accuse(self, suspects: Sequence[WorkItem]) -> WorkItem | None:
        """The worker died while it computed ``suspects`` (their crashes count this death). Returns the guilty
        one, if that is known now.
        """
        if len(suspects) == 1 and suspects[0].crashes >= self._max_attempts:
            return suspects[0]
        half = (len(suspects) + 1) // 2
        self._groups.extend(list(group) for group in (suspects[:half], suspects[half:]) if group)
        return None

    def next_group(self) -> list[WorkItem] | None:
        """The works to try next, apart from all others."""
        return self._groups.popleft() if self._groups else None
