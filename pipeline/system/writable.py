"""Whether a file can be written at a place: tried rather than guessed, for rights, read-only disks, quotas
and names that are too long show themselves only there. What is tried leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import StoppedEarly, UsageError
from pipeline.system.atomic_write import stopped_by_disk

_TRIED_BYTES = 4096  # of a full disk an empty file can still be had


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, or replaced, as ``replace_file`` does it. Raises UsageError,
    StoppedEarly where the disk is full or fails.
    """
    try:
        place = Path(os.path.realpath(path))
        _check_kind(place)
        with _folder(place.parent):
            _try_file(place.with_name(f".{secrets.token_hex(8)}.part"))
            if not os.path.lexists(place):
                _try_file(place)  # its name may be what the disk does not take
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        stopped = stopped_by_disk(error, path) if isinstance(error, OSError) else None
        raise stopped or UsageError(f"cannot write {path}: {_why(error)}; choose another place") from None


@contextmanager
def written_later(path: Path, again: str) -> Iterator[None]:
    """What keeps ``path``, which could be written when it was tried, from being written inside becomes
    StoppedEarly, with the command that writes it ``again``.
    """
    try:
        yield
    except (OSError, StoppedEarly) as error:
        reason = _why(error) if isinstance(error, OSError) else str(error).partition(";")[0]  # ours, remedied
        raise StoppedEarly(
            f"{path} could not be written: {reason}; once that is mended, {again} writes it"
        ) from None


def _check_kind(place: Path) -> None:
    """Only a plain file is replaced: not a folder, and not a device or a pipe."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = place.lstat().st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a device or a pipe, not a file")


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """``folder`` is there inside the block; what had to be made for that is removed again."""
    missing = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    above = missing[-1].parent if missing else folder
    if not above.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{above} is a file")
    made: list[Path] = []
    try:
        for place in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process makes it, too
                place.mkdir()
                made.append(place)
        yield
    finally:
        for place in reversed(made):
            with contextlib.suppress(OSError):  # somebody uses it by now
                place.rmdir()


def _try_file(place: Path) -> None:
    descriptor = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, bytes(_TRIED_BYTES))
    finally:
        try:
            os.close(descriptor)  # where a quota on another machine is found exceeded
        finally:
            place.unlink(missing_ok=True)


def _why(error: OSError | ValueError) -> str:
    """The system's words, and what they are about where that is another place: a folder on the way."""
    if not isinstance(error, OSError):
        return str(error)
    place = None if error.filename is None else Path(os.fsdecode(error.filename))
    if place is not None and place.suffix == ".part":  # a name of ours, which nobody knows
        place = place.parent
    return f"{error.strerror or error}{'' if place is None else f' ({place})'}"
