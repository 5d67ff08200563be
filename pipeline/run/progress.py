"""What a run tells whoever watches it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict

from pipeline.records import Outcome, Progress
from pipeline.system.run_lock import HeldLock
from pipeline.tasks.throughput_meter import ThroughputMeter

_log = logging.getLogger(__name__)

Observer = Callable[[Progress], None]


def tell(observer: Observer, progress: Progress) -> None:
    """What has a message is in the log, too."""
    if progress.message:
        _log.info("%s", progress.message)
    observer(progress)


class Noted:
    """An observer that also notes beside the run's lock where the run is, for whoever looks from outside."""

    def __init__(self, held: HeldLock, observer: Observer) -> None:
        self._held = held
        self._observer = observer

    def __call__(self, progress: Progress) -> None:
        """Note it, and pass it on."""
        self._held.say(asdict(progress))
        self._observer(progress)


class WorkProgress:
    """How many of ``works`` are recorded, and the pace at which their ``characters`` are read."""

    def __init__(self, observer: Observer, works: int, characters: int) -> None:
        self.pace = ThroughputMeter(characters)
        self._observer = observer
        self._works = works
        self._done = self._failed = 0

    def recorded(self, outcomes: Sequence[Outcome]) -> None:
        """These count now."""
        self._done += len(outcomes)
        self._failed += sum(outcome.state != "done" for outcome in outcomes)

    def loading(self, message: str) -> None:
        """What the worker says while there is no model."""
        tell(self._observer, Progress("loading", self._done, self._failed, self._works, message=message))

    def loaded(self) -> None:
        """The model is there: the pace counts from now."""
        self.pace.start()
        tell(self._observer, Progress("working", self._done, self._failed, self._works))

    def show(self) -> None:
        """How far it is, and how fast it goes."""
        pace = self.pace.tokens_per_second, self.pace.eta_seconds
        tell(self._observer, Progress("working", self._done, self._failed, self._works, *pace))
