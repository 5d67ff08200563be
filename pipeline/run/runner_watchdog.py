"""Where the runner itself is: the document that it tokenizes or reads answers of, noted in a small file that
outlives a killed process.

The note costs a system call and is not synced: a power cut is no document's fault. A run that finds the note
of a dead one knows which document it died in. A watching thread ends what takes for ever: first by an
exception in the document's own work, which becomes its failure; code that cannot be interrupted takes the
process with it, and the next start finds the note.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

from pipeline.errors import EXIT_STOPPED, DocumentFailed
from pipeline.records import WorkId

_log = logging.getLogger(__name__)

_NOTE_BYTES = 512  # longer than any task name and key
_LOOK_SECONDS = 0.5


class RunnerWatchdog:
    """A context manager around a run's work. ``at`` is entered by one thread; ``died_in`` is what a dead run
    left, until it is settled.

    A document may take ``stall_seconds`` in one go, and half as much again before the process is ended.
    """

    def __init__(self, path: Path, stall_seconds: float) -> None:
        self._path = path
        self._stall_seconds = stall_seconds
        self._descriptor: int | None = None
        self._current: WorkId | None = None
        self._since = 0.0
        self._told = False
        self._ended = threading.Event()
        self._handler: Any = None
        self.died_in = _read(path)

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # without a note a death in here is nobody's, as it always was
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM"):
            self._handler = signal.signal(signal.SIGALRM, self._interrupt)
        threading.Thread(target=self._guard, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._handler is not None:
            signal.signal(signal.SIGALRM, self._handler)
        if self._descriptor is not None:
            os.close(self._descriptor)
            if self.died_in is None:
                self._path.unlink(missing_ok=True)

    def settle(self) -> None:
        """What was left has been counted, and is forgotten."""
        self.died_in = None
        self._write(None)

    @contextmanager
    def at(self, work: WorkId) -> Iterator[None]:
        """Inside, the runner works on ``work`` itself. May raise DocumentFailed ``stalled`` at any point of
        it.
        """
        self._write(work)
        self._since, self._told, self._current = time.monotonic(), False, work
        try:
            yield
        finally:
            self._current = None
            self._write(None)

    def _write(self, work: WorkId | None) -> None:
        if self._descriptor is not None:
            text = b"" if work is None else json.dumps(work).encode("ascii")
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, text.ljust(_NOTE_BYTES), 0)

    def _guard(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            work, seconds = self._current, time.monotonic() - self._since
            if work is None or seconds < self._stall_seconds:
                continue
            if seconds >= 1.5 * self._stall_seconds:
                _log.error(
                    "the runner was stuck for %.0f s in task %s on document %s and ended itself",
                    seconds,
                    *work,
                )
                os._exit(EXIT_STOPPED)
            if not self._told and self._handler is not None:
                self._told = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """Runs in the main thread, so what it sees as current is what is interrupted."""
        if self._current is not None and time.monotonic() - self._since >= self._stall_seconds:
            raise DocumentFailed(
                "stalled",
                f"this document kept the runner itself busy for {self._stall_seconds:.0f} s in one go "
                f"(engine.stall_seconds)",
            )


def _read(path: Path) -> WorkId | None:
    """The work that a run was at when it died, None where it was at none."""
    try:
        task, key = json.loads(path.read_bytes()[:_NOTE_BYTES])
    except (OSError, ValueError, TypeError):
        return None
    return (task, key) if isinstance(task, str) and isinstance(key, str) else None
