"""File systems of a few megabytes, to be filled and enlarged; tests that need one are skipped, visibly, where
none can be mounted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class SmallDisk:
    """A mounted tmpfs."""

    place: Path

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.place).free

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all of it but ``leave_bytes``."""
        descriptor = os.open(self.place / "filler", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        with contextlib.suppress(OSError):  # others write to it at the same time
            while (free := self.free_bytes - leave_bytes) > 0:
                os.write(descriptor, b"x" * free)
        os.close(descriptor)

    def enlarge(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.place)], check=True)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[SmallDisk]:
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if (
        shutil.which("mount") is None
        or os.geteuid() != 0
        or subprocess.run(command, check=False, capture_output=True).returncode != 0
    ):
        pytest.skip("a small file system can only be mounted by root")
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
