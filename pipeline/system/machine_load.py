"""How much of this machine's processors other programs use: what is measured, or planned, beside them rests
on that.
"""

from __future__ import annotations

import contextlib
import time

import psutil

_LEAST_CORES = 0.5  # less is what a system takes for itself
_LEAST_SHARE = 0.1
_IDLE = ("idle", "iowait", "guest", "guest_nice", "steal")  # guests are counted in user, too


class OthersLoad:
    """What others use from now on; this process and all that it starts do not count."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._all_seconds, self._own_seconds = _busy_seconds(), _own_seconds()

    @property
    def busy_cores(self) -> float:
        """Cores that others have used on average; 0 where it is too little to matter."""
        elapsed = max(1e-3, time.monotonic() - self._since)
        others = (_busy_seconds() - self._all_seconds) - (_own_seconds() - self._own_seconds)
        cores = others / elapsed
        return cores if cores >= max(_LEAST_CORES, _LEAST_SHARE * _cores()) else 0.0

    @property
    def words(self) -> str:
        """``while other programs used 1.6 of 2 cores``; empty where they did not."""
        return beside(self.busy_cores)


def beside(busy_cores: float) -> str:
    """The words for so many cores that others use; empty for none."""
    return f"while other programs used {busy_cores:.1f} of {_cores()} cores" if busy_cores else ""


def _cores() -> int:
    return psutil.cpu_count() or 1


def _busy_seconds() -> float:
    times = psutil.cpu_times()._asdict()
    return float(sum(seconds for name, seconds in times.items() if name not in _IDLE))


def _own_seconds() -> float:
    """Of this process, of those that it has started, and of those that have ended and were waited for."""
    own = psutil.Process()
    seconds = sum(own.cpu_times()[:4])
    for child in own.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            seconds += sum(child.cpu_times()[:4])
    return float(seconds)
