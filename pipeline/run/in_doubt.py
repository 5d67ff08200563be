"""What is done about works that may have taken a worker, or the runner itself, down: they are tried after
all others, in halves, then alone, and the guilty one is quarantined.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from pipeline.errors import DeviceLost, OvernightError
from pipeline.records import Failure
from pipeline.run.fault_isolation import FaultIsolation
from pipeline.run.progress import WorkProgress
from pipeline.run.session import RunSession
from pipeline.run.work_queue import WorkItem
from pipeline.run.worker_pool import Death
from pipeline.tasks.driver import TaskDriver

_log = logging.getLogger(__name__)
_DEATHS_OF_NOBODY = 3


class InDoubt:
    """The doubtful works of a run, and what becomes of them."""

    def __init__(self, session: RunSession, progress: WorkProgress, max_attempts: int) -> None:
        self._session = session
        self._progress = progress
        self._max_attempts = max_attempts
        self._faults = FaultIsolation(max_attempts)
        self._deaths_of_nobody = 0

    def next_group(self) -> list[WorkItem] | None:
        """The works to try next, apart from all others; None when no doubt is left."""
        return self._faults.next_group()

    def after(self, death: Death, driver: TaskDriver) -> None:
        """Take the suspects out of ``driver`` and put them aside, or the guilty one into quarantine. Works
        that were merely beside them stay under way. Raises OvernightError when workers die of nothing.
        """
        _log.warning("%s", death.reason)
        leased = [request.request_id for request in death.leased]
        # those that it computed; all that it held when nothing is known of that
        suspected = driver.asking(death.started) or driver.asking(leased)
        self._deaths_of_nobody = 0 if suspected else self._deaths_of_nobody + 1
        if self._deaths_of_nobody >= _DEATHS_OF_NOBODY:
            kind = DeviceLost if death.by_device else OvernightError
            raise kind(
                f"the worker died {self._deaths_of_nobody} times in a row while it computed nothing: "
                f"{death.reason}"
            )
        driver.abandon(suspected)
        guilty = self._faults.accuse(
            [
                replace(work, attempts=work.attempts + 1, crashes=work.crashes + 1)
                for work in self._session.give_back(suspected, _outcome(death), death.reason)
            ]
        )
        if guilty is not None:
            message = (
                f"the worker died {guilty.crashes} times with this document, the last time alone: "
                f"{death.reason}"
            )
            self._quarantine(guilty, Failure("worker_died", message, guilty.crashes))

    def set_aside(self, work: WorkItem) -> None:
        """A work that earlier runs had trouble with is tried last and alone; one that took the runner down
        too often, never again.
        """
        died = (
            min(work.crashes, self._session.ledger.runner_deaths(*work.id))
            if work.crashes >= self._max_attempts
            else 0
        )
        if died < self._max_attempts:
            self._faults.set_aside(work)
            return
        message = (
            f"the runner itself died {died} times while it worked on this document: building its "
            f"prompts, or reading its answers"
        )
        self._quarantine(work, Failure("runner_died", message, died))

    def _quarantine(self, work: WorkItem, failure: Failure) -> None:
        self._progress.recorded([self._session.quarantine(work, failure)])


def _outcome(death: Death) -> str:
    """What an attempt ended by. A card that failed is held against no document beyond this run: within it,
    the card has proved itself with made-up prompts before each of them is tried again.
    """
    return "device failed" if death.by_device else "crashed"
