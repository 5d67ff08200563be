"""When to stop early: a signal, the deadline, a request from outside. Looked at between pieces of work, never
inside one.
"""

from __future__ import annotations

import datetime
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pipeline.errors import EXIT_STOPPED, StoppedEarly

_LOOK_SECONDS = 0.5
_JITTER = datetime.timedelta(minutes=1)  # a clock that is set back by less was only made exact


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
        # no timer of so many seconds: those do not pass while a machine sleeps, nor when the clock is set
        watched = Deadline(deadline, _local_time())
        with self.watch_request(lambda: watched.reached(_local_time()), f"deadline {deadline}"):
            yield


class Deadline:
    """A time of day (HH:MM), watched by looking at the clock (naive local time) now and then.

    It is reached when the clock has come to it or past it since the last look, however it came there: by the
    hour that summer time leaves out, by a correction, or while the machine slept. Where the clock was set
    back, it counts from there.
    """

    def __init__(self, clock: str, now: datetime.datetime) -> None:
        self._clock = clock
        self._seen = now

    def reached(self, now: datetime.datetime) -> bool:
        """Whether the deadline lies between the last look and ``now``."""
        if next_time(self._clock, self._seen) <= now:
            return True
        if now > self._seen or self._seen - now > _JITTER:
            self._seen = now
        return False


def next_time(clock: str, now: datetime.datetime) -> datetime.datetime:
    """The next moment after ``now`` at which a clock shows ``clock`` (HH:MM); at that very minute,
    tomorrow's.
    """
    hour, minute = map(int, clock.split(":"))
    then = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return then if then > now else then + datetime.timedelta(days=1)


def seconds_until(clock: str) -> float:
    """Seconds until the clock of this machine next shows ``clock`` (HH:MM), as far as can be told now."""
    now = _local_time()
    return next_time(clock, now).timestamp() - now.timestamp()


def _local_time() -> datetime.datetime:
    time.tzset()  # the zone of the machine may have changed, as on a journey
    return datetime.datetime.now()
