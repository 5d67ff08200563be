"""What a person sees while a run goes on: a progress bar on a terminal, a line every now and then in a
log.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.records import WORKING
from pipeline.records import Progress as Report
from pipeline.system.units import duration

if TYPE_CHECKING:
    from pipeline.run.progress import Observer

_LINE_SECONDS = 15.0
_WORTH_SAYING = 0.05  # of all the reading: more lies in long documents under way


@contextmanager
def display(beginning: str, *, quiet: bool = False) -> Iterator[Observer]:
    """An observer for ``run``: silent, a bar, or lines, as fits standard error. ``beginning`` is said at
    once.
    """
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        yield from _bar(beginning)
    else:
        lines = _Lines()
        lines(Report("starting", message=beginning))
        yield lines


def _bar(beginning: str) -> Iterator[Observer]:
    from rich.console import Console  # only where there is a terminal
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TextColumn("{task.fields[facts]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task(beginning, total=None, counts="", facts="")

        def observe(report: Report) -> None:
            if report.stage == "remark":  # stays above the bar
                bar.console.print(report.message, markup=False)
                return
            label = report.message or report.stage
            bar.update(
                line,
                description=label,
                total=1.0 if report.total else None,
                completed=report.behind,
                counts=_counts(report),
                facts=facts(report),
            )

        yield observe


class _Lines:
    """At most one line in ``_LINE_SECONDS``, and one at each new stage."""

    def __init__(self) -> None:
        self._stage = ""
        self._last = 0.0

    def __call__(self, report: Report) -> None:
        now = time.monotonic()
        is_news = report.stage == "remark" or (report.stage == WORKING and report.message)
        if report.stage == self._stage and now - self._last < _LINE_SECONDS and not is_news:
            return
        self._stage, self._last = report.stage, now
        print(f"{time.strftime('%H:%M:%S')} {where(report)}", file=sys.stderr, flush=True)


def where(report: Report) -> str:
    """``working 12/60 2 failed, 310 tokens/s, 1 h 05 min left``, or what it says itself."""
    known = [report.message or report.stage, _counts(report), facts(report)]
    return " ".join(filter(None, known))


def _counts(report: Report) -> str:
    return f"{report.done:,}/{report.total:,}" if report.total else ""


def facts(report: Report) -> str:
    """``2 failed, 310 tokens/s, 1 h 05 min left`` as far as they are known."""
    known = []
    if report.failed:
        known.append(f"{report.failed:,} failed")
    if report.tokens_per_second:
        known.append(f"{report.tokens_per_second:,.0f} tokens/s")
    if report.total and report.behind - report.done / report.total > _WORTH_SAYING:
        known.append(f"{report.share:.0%} read")
    if report.eta_seconds is not None:
        known.append(f"{duration(round(report.eta_seconds))} left")
    return ", ".join(known)
