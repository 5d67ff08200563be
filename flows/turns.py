"""Whose turn it is in a run directory: flows of different kinds wait for each other, a second flow of the
same kind does not start.

Both deployments may be scheduled for the same hour over the same run directory, which only one process can
hold. The turns are file locks beside the run's own lock, so they go with their holder's death and need no
server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from pipeline.errors import AlreadyRunning
from pipeline.records import Progress
from pipeline.system.run_directory import RunDirectory
from pipeline.system.stop_signal import StopSignal
from pipeline.tasks.registry import kinds

_Result = TypeVar("_Result")
_POLL_SECONDS = 1.0


class Turn:
    """The right to be the one flow of its kind in a run directory."""

    def __init__(self, directory: Path, kind: str) -> None:
        self._directory = directory
        self._kind = kind

    def when_free(
        self, start: Callable[[], _Result], observer: Callable[[Progress], None], stop: StopSignal
    ) -> _Result:
        """Call ``start``, again and again while a flow of another kind holds the run. Raises AlreadyRunning
        when anything else holds it.
        """
        alone = False
        while True:
            try:
                return start()
            except AlreadyRunning:
                holder = self._holder()
                if holder is None and alone:
                    raise
                alone = holder is None  # it may have ended between our try and our look: try once more
            if holder:
                observer(
                    Progress("reading", message=f"waiting for the {holder} run in {self._directory} to end")
                )
                time.sleep(_POLL_SECONDS)
            stop.check()

    def _holder(self) -> str | None:
        """Another kind of flow that is at work in the directory."""
        for kind in kinds():
            lock = _lock(self._directory, kind)
            try:
                if kind != self._kind:
                    lock.acquire()
                    lock.release()
            except Timeout:
                return kind
        return None


@contextmanager
def take_turn(directory: str, kind: str) -> Iterator[Turn]:
    """Hold the turn of ``kind``. Raises AlreadyRunning when another flow of that kind holds it."""
    place = RunDirectory(directory)
    place.create()
    lock = _lock(place.path, kind)
    try:
        lock.acquire()
    except Timeout:
        raise AlreadyRunning(
            f"another {kind} run is at work in {place.path}; wait for it, or stop it"
        ) from None
    try:
        yield Turn(place.path, kind)
    finally:
        lock.release()


def _lock(directory: Path, kind: str) -> FileLock:
    return FileLock(directory / f"{kind}.turn", timeout=0)
