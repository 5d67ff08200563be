"""Disks that are full, slow or gone, in the place of the real one."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

from pipeline.stores.kv.files import Files


class PowerCut(BaseException):
    """The process is no more: nothing may handle it."""


class FailingFiles(Files):
    """The change number ``fails_at`` (from 1) and, if ``for_good``, all later ones do not happen and raise
    ``error``.

    ``partly``: a write that fails has written half of its bytes.
    """

    def __init__(
        self, fails_at: int | None, error: BaseException, *, for_good: bool, partly: bool = True
    ) -> None:
        self.fails_at = fails_at
        self.count = 0
        self._error = error
        self._for_good = for_good
        self._partly = partly

    def _gate(self, name: str, *args: Any) -> None:
        self.count += 1
        if (
            self.fails_at is None
            or self.count < self.fails_at
            or (self.count > self.fails_at and not self._for_good)
        ):
            return
        if name == "write" and self._partly and self.count == self.fails_at:
            super().write(args[0], args[1][: len(args[1]) // 2], args[2])
        raise self._error

    def make_folder(self, path: Path) -> None:
        self._gate("make_folder")
        super().make_folder(path)

    def allocate(self, path: Path, size_bytes: int) -> int:
        self._gate("allocate")
        return super().allocate(path, size_bytes)

    def write(self, descriptor: int, data: memoryview, offset: int) -> None:
        self._gate("write", descriptor, data, offset)
        super().write(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        self._gate("sync")
        super().sync(descriptor)

    def sync_folder(self, path: Path) -> None:
        self._gate("sync_folder")
        super().sync_folder(path)

    def publish(self, source: Path, target: Path) -> None:
        self._gate("publish")
        super().publish(source, target)

    def append(self, path: Path, data: bytes) -> None:
        self._gate("append")
        super().append(path, data)

    def remove(self, path: Path) -> None:
        self._gate("remove")
        super().remove(path)

    def touch(self, path: Path, seconds: float) -> None:
        self._gate("touch")
        super().touch(path, seconds)


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SlowFiles(Files):
    """Reads and writes of ``bytes_per_second``."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second

    def read(self, descriptor: int, into: memoryview, offset: int) -> int:
        time.sleep(len(into) / self._bytes_per_second)
        return super().read(descriptor, into, offset)

    def write(self, descriptor: int, data: memoryview, offset: int) -> None:
        time.sleep(len(data) / self._bytes_per_second)
        super().write(descriptor, data, offset)


class FewFreeBytes(Files):
    """A disk on which other programs left little room."""

    def __init__(self, free_bytes: int) -> None:
        self.left_bytes = free_bytes

    def free_bytes(self, path: Path) -> int:
        return self.left_bytes
