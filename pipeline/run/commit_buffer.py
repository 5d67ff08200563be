"""What has landed and is not on the disk yet: committed together, about once a second, so that the disk is
not asked for each document.

A commit waits for the disk, some milliseconds to some tens. Where a document takes longer than a second, each
is committed by itself; a process that is killed loses what the model did in its last second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from pipeline.records import Outcome
from pipeline.stores.ledger.ledger import Ledger, RecordedReply
from pipeline.tasks.driver import Reply

_COMMIT_SECONDS = 1.0


class CommitBuffer:
    """Takes outcomes and replies of one run, and commits them to the ledger."""

    def __init__(self, ledger: Ledger, run: int) -> None:
        self._ledger = ledger
        self._run = run
        self._outcomes: list[Outcome] = []
        self._answered: list[RecordedReply] = []
        self._last = float("-inf")

    def add(self, outcomes: Sequence[Outcome], replies: Sequence[Reply]) -> None:
        """Documents that landed, and replies inside documents; they count once they are committed."""
        self._outcomes += outcomes
        self._answered += [(reply.work, reply.step, reply.generation) for reply in replies]

    def commit(self, *, at_once: bool = False) -> list[Outcome]:
        """Commit what there is, in one transaction, unless the last one was a moment ago; returns the
        outcomes recorded by it.
        """
        if not (self._outcomes or self._answered) or not (
            at_once or time.monotonic() - self._last >= _COMMIT_SECONDS
        ):
            return []
        self._ledger.finish(self._run, self._outcomes, self._answered)
        recorded, self._outcomes, self._answered = self._outcomes, [], []
        self._last = time.monotonic()
        return recorded
