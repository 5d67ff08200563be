"""When to stop early: a signal, the deadline, a request from outside. Looked at between pieces of work, never
inside one.
"""

from __future__ import annotations

import datetime
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pipeline.errors import EXIT_STOPPED, StoppedEarly

_LOOK_SECONDS = 0.5


class StopSignal:
    """A wish to stop, with its reason; the first one stays. Safe to set from any thread or signal handler."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._event = threading.Event()

    def request(self, reason: str) -> None:
        """Ask the run to stop cleanly."""
        if self._reason is None:
            self._reason = reason
        self._event.set()

    def check(self) -> None:
        """Raise StoppedEarly when a stop was requested."""
        if self._reason is not None:
            raise StoppedEarly(self._reason)

    @contextmanager
    def watch_signals(self, *, patient: bool = False) -> Iterator[None]:
        """Turn the first SIGINT or SIGTERM into a request; a second ends the process at once, unless
        ``patient``.

        Outside the main thread, do nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, _frame: FrameType | None) -> None:
            if not patient and self._reason is not None and self._reason.startswith("signal"):
                os._exit(EXIT_STOPPED)
            self.request(f"signal {signal.Signals(number).name}")

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def watch_request(self, is_asked: Callable[[], bool], reason: str) -> Iterator[None]:
        """Request a stop, for ``reason``, once ``is_asked`` says so; it is asked about twice a second."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_LOOK_SECONDS):
                if is_asked():
                    self.request(reason)
                    return

        thread = threading.Thread(target=watch, name="stop requests", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    @contextmanager
    def watch_deadline(self, deadline: str | None) -> Iterator[None]:
        """Request a stop when the clock next shows ``deadline`` ("07:00", local time)."""
        if deadline is None:
            yield
            return
        seconds = seconds_until(deadline, datetime.datetime.now())
        timer = threading.Timer(seconds, self.request, [f"deadline {deadline}"])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def seconds_until(clock: str, now: datetime.datetime) -> float:
    """Seconds from ``now`` to the next moment at which a clock shows ``clock`` (HH:MM); at that very minute,
    to tomorrow's.
    """
    hour, minute = map(int, clock.split(":"))
    then = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if then <= now:
        then += datetime.timedelta(days=1)
    return (then - now).total_seconds()
