"""Whole files or none: a reader, and a machine that lost power, finds the old content or the new, never part
of it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipeline.errors import StoppedEarly


def disk_is_full(place: Path | str) -> StoppedEarly:
    """What to say where the disk under ``place`` has no room."""
    return StoppedEarly(
        f"the disk that holds {place} is full; free some space and run the same command again"
    )


def says_full(error: BaseException | None) -> bool:
    """Whether SQLite, of whose errors only the words come through all layers, found the disk full."""
    return any(words in str(error) for words in ("disk is full", "No space left"))


def disk_fails(place: Path | str, reason: str | None) -> StoppedEarly:
    """What to say where the disk under ``place`` does not work."""
    return StoppedEarly(
        f"the disk that holds {place} could not be used ({reason}); look after it and run the same "
        f"command again"
    )


def stopped_by_disk(error: OSError, place: Path | str) -> StoppedEarly | None:
    """What ``error`` means for a run: its disk is full or does not work; None where it is about something
    else.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_is_full(place)
    return disk_fails(place, error.strerror) if error.errno == errno.EIO else None


@contextmanager
def failing_disk_stops(place: Path) -> Iterator[None]:
    """A disk under ``place`` that is full or does not work becomes StoppedEarly inside the block, with a
    sentence.
    """
    try:
        yield
    except OSError as error:
        if (stopped := stopped_by_disk(error, place)) is not None:
            raise stopped from None
        raise


@contextmanager
def replace_file(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """A handle whose bytes become ``path`` when the block ends well; ``private``: for the user's eyes only,
    otherwise a file that is replaced keeps its rights.

    Raises StoppedEarly when the disk is full.
    """
    place = Path(os.path.realpath(path))  # a link goes on pointing where it points
    sibling = place.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with (
            failing_disk_stops(path.parent),
            os.fdopen(
                os.open(sibling, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666), "wb"
            ) as stream,
        ):
            if not private and place.exists():
                os.fchmod(stream.fileno(), stat.S_IMODE(place.stat().st_mode))
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        with failing_disk_stops(path.parent):
            sibling.replace(place)
            _sync_folder(place.parent)
    except BaseException:
        sibling.unlink(missing_ok=True)
        raise


def _sync_folder(path: Path) -> None:
    """Let the names in a folder reach the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
