"""The lock of a run directory: who holds it, what that one is doing, and how it is asked to stop.

The lock is the file system's: it goes with its holder's death, here or on another machine that shares the
directory. What is written beside it (``lock.json``) is believed only while it is held. Nobody is ever sent a
signal: a number of a process may by now be another's, or one of another machine. Who is to stop is asked by
an empty file with a name that only he looks for.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shlex
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipeline.errors import AlreadyRunning, UsageError

RUN = "run"
"""The command whose holder asks a model; others (``calibrate``, ``retry``) hold the lock for a moment."""

_NOTE_BYTES = 4096  # one page: what is written at once is read at once
_MESSAGE_CHARACTERS = 500
_SAY_SECONDS = 1.0
_PATIENCE_SECONDS = 0.5  # who only looks whether the lock is held, holds it for a moment
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock: ``overnight COMMAND`` as process ``pid`` of the machine ``host``, since a time in
    seconds of the epoch.

    ``doing`` is what it said last (``stage`` and more, see ``HeldLock.say``), at ``said_at``; empty: nothing
    yet. An empty ``token``: it has left no note, and nothing is known of it.
    """

    token: str = ""
    command: str = RUN
    pid: int = 0
    host: str = ""
    since: float = 0.0
    said_at: float = 0.0
    doing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For people."""
        if not self.token:
            return "a process that has left no note"
        return f"overnight {self.command}, process {self.pid} on {self.host}"


class HeldLock:
    """A lock that this process holds."""

    def __init__(self, folder: Path, command: str) -> None:
        self._path = folder / "lock.json"
        now = time.time()
        self._holder = Holder(secrets.token_hex(8), command, os.getpid(), socket.gethostname(), now, now)
        self._asked = _request(folder, self._holder)
        self._stage: object = None
        self._next_words = float("-inf")
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):  # only a courtesy to whoever finds the lock taken
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        self._write({})

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether somebody wants this holder to stop."""
        return self._asked.exists()

    def say(self, doing: Mapping[str, Any]) -> None:
        """Note what is done now, for whoever looks: plain values, with a ``stage``. A new stage at once, more
        of the same about once a second.
        """
        if doing.get("stage") == self._stage and time.monotonic() < self._next_words:
            return
        self._stage, self._next_words = doing.get("stage"), time.monotonic() + _SAY_SECONDS
        self._write(doing)

    def let_go(self) -> None:
        """Take the note away, and requests to stop."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        for place in (self._path, self._asked):
            with contextlib.suppress(OSError):
                place.unlink(missing_ok=True)

    def _write(self, doing: Mapping[str, Any]) -> None:
        if self._descriptor is None:
            return
        told = {
            name: value[:_MESSAGE_CHARACTERS] if isinstance(value, str) else value
            for name, value in doing.items()
        }
        note = json.dumps({**asdict(self._holder), "said_at": time.time(), "doing": told}).encode("ascii")
        if len(note) <= _NOTE_BYTES:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, note.ljust(_NOTE_BYTES), 0)


class RunLock:
    """The lock of the run directory ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "lock"

    @contextmanager
    def held(self, command: str) -> Iterator[HeldLock]:
        """Hold it as ``overnight COMMAND``. Raises AlreadyRunning with its holder, UsageError where the file
        system has no locks, OSError.
        """
        lock = FileLock(self.path, timeout=_PATIENCE_SECONDS, mode=0o600)
        try:
            lock.acquire(poll_interval=_PATIENCE_SECONDS / 10)
        except Timeout:
            raise AlreadyRunning(self._taken_by(self.holder() or Holder())) from None
        except NotImplementedError:
            raise UsageError(
                f"the file system that holds {self._folder} knows no locks; put run.directory elsewhere"
            ) from None
        held = None
        try:
            for old in self._folder.glob("stop.*"):  # asked of a run that has ended
                with contextlib.suppress(OSError):
                    old.unlink(missing_ok=True)
            held = HeldLock(self._folder, command)
            yield held
        finally:
            if held is not None:
                held.let_go()
            lock.release()

    def holder(self) -> Holder | None:
        """Who holds it at this moment; None: nobody, whatever a dead holder has left behind."""
        return self._note() if self._is_taken() else None

    def ask_to_stop(self, holder: Holder) -> None:
        """Leave word for ``holder``, and for nobody who comes after it. Raises OSError."""
        _request(self._folder, holder).touch(mode=0o600)

    def _taken_by(self, holder: Holder) -> str:
        if holder.command != RUN:
            return f"{self._folder} is in use for a moment ({holder.name}); run the same command again"
        stop = f"overnight stop {shlex.quote(str(self._folder))}"
        return f"{self._folder} is in use by another run ({holder.name}); wait for it, or stop it with {stop}"

    def _is_taken(self) -> bool:
        """Looked at without standing in anybody's way for longer than a moment."""
        import fcntl  # where there is none, nothing of this program runs

        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in _TAKEN
        finally:
            os.close(descriptor)
        return False

    def _note(self) -> Holder:
        try:
            return Holder(**json.loads((self._folder / "lock.json").read_bytes()))
        except (OSError, ValueError, TypeError):  # not written yet, or by another version
            return Holder()


def _request(folder: Path, holder: Holder) -> Path:
    return folder / f"stop.{holder.token}"
