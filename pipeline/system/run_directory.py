"""The run directory: one folder that holds the ledger, the rejects, the report, the log and the lock of a
run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path

from pipeline.errors import OvernightError, UsageError
from pipeline.system.atomic_write import stopped_by_disk
from pipeline.system.run_lock import RUN, HeldLock, RunLock

LEDGER = "ledger.sqlite"
_LOG = "overnight.log"


class _QuietHandler(logging.FileHandler):
    """A log that cannot be written (a full disk) is no reason for a word on the terminal: what matters is in
    the ledger.
    """

    def _open(self) -> TextIOWrapper:
        # whoever made the folder
        descriptor = os.open(self.baseFilename, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        return TextIOWrapper(os.fdopen(descriptor, "ab"), encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name is the base class's
        """Let it go."""


class RunDirectory:
    """Paths inside one run directory, its lock and its log. Created private to the user: documents may be
    confidential.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.ledger = self.path / LEDGER
        self.rejects = self.path / "rejects.jsonl"
        self.report = self.path / "report.md"
        self.offload = self.path / "offload"
        self.note = self.path / "note"
        self.reproduced = self.path / "reproduced"
        self.lock = RunLock(self.path)

    def reproducing(self, document_id: str) -> str:
        """One line for a shell that asks about this document alone, in a run directory of its own."""
        end = "-- " if document_id.startswith("-") else ""
        return f"overnight reproduce {end}{shlex.quote(str(self.path))} {shlex.quote(document_id)}"

    def check(self) -> None:
        """Whether a run could use it now: it is made, and locked for a moment where runs have been; whatever
        had to be made for that is gone again. Raises as ``locked`` and ``logging``.
        """
        missing = [place for place in (self.path, *self.path.parents) if not os.path.lexists(place)]
        try:
            self.create()
            if self.lock.path.exists():
                with self.locked("doctor"), self.logging():
                    pass
        finally:
            for place in missing:
                with contextlib.suppress(OSError):  # never made, or somebody uses it by now
                    place.rmdir()

    def create(self) -> None:
        """Make the folder if need be. Raises UsageError when the place cannot hold one."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"{self.path} cannot be a run directory: a file is in the way") from None
        except OSError as error:
            raise UsageError(f"cannot create the run directory {self.path}: {error.strerror}") from None
        if not os.access(self.path, os.W_OK):
            raise UsageError(f"the run directory {self.path} is not writable")

    @contextmanager
    def locked(self, command: str = RUN) -> Iterator[HeldLock]:
        """Hold the run's lock as ``overnight COMMAND``. It goes with its holder's death. Raises
        AlreadyRunning with the holder, where known.
        """
        self.create()
        with ExitStack() as stack:
            try:
                held = stack.enter_context(self.lock.held(command))
            except OSError as error:
                raise self._unusable(error) from None
            yield held

    def _unusable(self, error: OSError) -> OvernightError:
        unusable = UsageError(
            f"the run directory {self.path} cannot be used: {error.strerror} ({error.filename})"
        )
        return stopped_by_disk(error, self.path) or unusable

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Append the log of this process to ``overnight.log`` in the directory."""
        try:
            handler = _QuietHandler(self.path / _LOG, encoding="utf-8")
        except OSError as error:
            raise self._unusable(error) from None
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        root = logging.getLogger()
        level = root.level
        root.addHandler(handler)
        root.setLevel(min(level, logging.INFO) if level else logging.INFO)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
            with contextlib.suppress(OSError):  # as above, for what was still buffered
                handler.close()
