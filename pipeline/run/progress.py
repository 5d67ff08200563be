"""What a run tells whoever watches it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from pipeline.records import Outcome, Progress, Stage
from pipeline.results.report.plan_vs_actual import estimated_again
from pipeline.system.run_lock import HeldLock
from pipeline.tasks.throughput_meter import ThroughputMeter

_FIRST_SECONDS = 120.0
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
        """Note it, unless it is said in passing, and pass it on."""
        if progress.stage != "remark":
            self._held.say(asdict(progress))
        self._observer(progress)


class WorkProgress:
    """How many of ``works`` are recorded, and the ``pace`` at which they are read. ``annotate`` notes once
    what the first minutes make of the plan.
    """

    def __init__(
        self,
        observer: Observer,
        works: int,
        pace: ThroughputMeter,
        annotate: Callable[..., None] = lambda **_: None,
    ) -> None:
        self.pace = pace
        self._annotate = annotate
        self._estimated = False
        self._observer = observer
        self._works = works
        self._done = self._failed = 0

    def recorded(self, outcomes: Sequence[Outcome]) -> None:
        """These count now."""
        self._done += len(outcomes)
        self._failed += sum(outcome.state != "done" for outcome in outcomes)

    def loading(self, message: str) -> None:
        """What the worker says while there is no model."""
        self.pace.pause()
        tell(self._observer, self._at("loading", message))

    def loaded(self) -> None:
        """The model is there: the pace counts from now."""
        self.pace.start()
        self.show()

    def show(self) -> None:
        """How far it is, and how fast it goes."""
        progress = self._at("working")
        if not self._estimated and self.pace.worked_seconds >= _FIRST_SECONDS:
            self._estimated = True
            progress = self._estimate_again(progress)
        tell(self._observer, progress)

    def _estimate_again(self, progress: Progress) -> Progress:
        """Set the plan right by the first minutes, once, where people look: the log, the display, the
        report.
        """
        planned, expected = progress.planned_seconds, progress.expected_seconds
        if planned is None or expected is None:
            return progress
        after = self.pace.worked_seconds
        self._annotate(
            pace={"after_seconds": after, "planned_seconds": planned, "expected_seconds": expected}
        )
        told = estimated_again(after, planned, expected)
        _log.info("%s", told)
        return replace(progress, message=told)

    def _at(self, stage: Stage, message: str = "") -> Progress:
        pace, left = self.pace, self.pace.eta_seconds
        return Progress(
            stage,
            self._done,
            self._failed,
            self._works,
            pace.tokens_per_second,
            left,
            message,
            pace.share,
            pace.planned_seconds,
            None if left is None else pace.worked_seconds + left,
        )
