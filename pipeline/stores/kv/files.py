"""The store's dealings with the operating system, in one small class, so that tests can put a full, slow or
dying disk in its place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

_PIECE_BYTES = 1 << 24
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
BLOCK_BYTES = 4096


def is_full(error: OSError) -> bool:
    """Whether the disk, or the user's share of it, has no room."""
    return error.errno in _NO_ROOM


def disk_bytes(size_bytes: int) -> int:
    """What a file or folder takes, in whole blocks of the usual file systems."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def used_bytes(path: Path) -> int:
    """What lies under ``path``, files being written and folders included; sizes, or allocated blocks where
    those are more.
    """
    total = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        total += _taken(path.lstat())
        with os.scandir(path) as found:
            for item in found:
                with contextlib.suppress(FileNotFoundError):
                    total += (
                        used_bytes(Path(item.path))
                        if item.is_dir(follow_symlinks=False)
                        else _taken(item.stat(follow_symlinks=False))
                    )
    return total


def _taken(facts: os.stat_result) -> int:
    return max(facts.st_size, 512 * getattr(facts, "st_blocks", 0))


class Files:
    """Real files. Every method raises OSError."""

    def make_folder(self, path: Path) -> None:
        """For the user's eyes only: token ids of confidential documents lie there."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def allocate(self, path: Path, size_bytes: int) -> int:
        """A new file of that size with its blocks reserved, where the file system can; its descriptor."""
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            self._reserve(descriptor, size_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _reserve(self, descriptor: int, size_bytes: int) -> None:
        if size_bytes and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(descriptor, 0, size_bytes)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
        # the size counts against the quota even where blocks cannot be reserved
        os.ftruncate(descriptor, size_bytes)

    def write(self, descriptor: int, data: memoryview, offset: int) -> None:
        """All of ``data`` (bytes) at ``offset``."""
        while data:
            written = os.pwrite(descriptor, data[:_PIECE_BYTES], offset)
            data, offset = data[written:], offset + written

    def read(self, descriptor: int, into: memoryview, offset: int) -> int:
        """Fill ``into`` (bytes) from ``offset``; returns the bytes read, fewer only at the end of the
        file.
        """
        done = 0
        while done < len(into):
            count = os.preadv(descriptor, [into[done : done + _PIECE_BYTES]], offset + done)
            if not count:
                break
            done += count
        return done

    def sync(self, descriptor: int) -> None:
        """Let the bytes reach the disk."""
        os.fsync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Let the names in a folder reach the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def publish(self, source: Path, target: Path) -> None:
        """Let ``source`` take the place of ``target``, in one step, and make that last."""
        source.replace(target)
        self.sync_folder(target.parent)

    def append(self, path: Path, data: bytes) -> None:
        """Add to the end of a file, in one write."""
        descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        """A file or a folder with all that is in it; nothing happens if it is gone."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def touch(self, path: Path, seconds: float) -> None:
        """Set the time at which a file was last used."""
        os.utime(path, (seconds, seconds))

    def free_bytes(self, path: Path) -> int:
        """What an ordinary user may still write to the file system that holds ``path``."""
        return shutil.disk_usage(path).free
