"""A process in a memory cgroup of its own: what it holds, page cache included, can be bounded. Version 1 and
version 2.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

_ROOT = Path("/sys/fs/cgroup")
_OOM_EXIT = -9


class MemoryGroup:
    """One cgroup; made by ``memory_group``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first = (folder / "memory.limit_in_bytes").exists()

    def start(self, command: Sequence[str], **popen: Any) -> subprocess.Popen[str]:
        """Start ``command`` inside."""
        into = str(self._folder / "cgroup.procs")
        shell = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', into, *command]
        return subprocess.Popen(shell, text=True, **popen)

    def drop_page_cache(self) -> None:
        """Let go what can be read again."""
        os.sync()
        with contextlib.suppress(OSError):
            if self._first:
                (self._folder / "memory.force_empty").write_text("0")
            else:
                (self._folder / "memory.reclaim").write_text(str(1 << 40))

    def usage_bytes(self) -> int:
        """What is charged now."""
        return int(
            (self._folder / ("memory.usage_in_bytes" if self._first else "memory.current")).read_text()
        )

    def peak_bytes(self) -> int:
        """The most that was charged since the last limit was set (version 1) or since the start."""
        return int(
            (self._folder / ("memory.max_usage_in_bytes" if self._first else "memory.peak")).read_text()
        )

    def limit(self, size_bytes: int) -> None:
        """From now on at most so much; swap is no way out."""
        if self._first:
            (self._folder / "memory.limit_in_bytes").write_text(str(size_bytes))
            with contextlib.suppress(OSError):  # not every kernel counts swap
                (self._folder / "memory.memsw.limit_in_bytes").write_text(str(size_bytes))
            (self._folder / "memory.max_usage_in_bytes").write_text("0")
        else:
            (self._folder / "memory.max").write_text(str(size_bytes))
            with contextlib.suppress(OSError):
                (self._folder / "memory.swap.max").write_text("0")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (self._folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        for _try in range(50):
            with contextlib.suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.1)


@contextlib.contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """A fresh cgroup; the test is skipped, visibly, where none can be made."""
    folder = _place() / f"overnight-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    if not any((folder / name).exists() for name in ("memory.limit_in_bytes", "memory.max")):
        folder.rmdir()
        pytest.skip("cgroups here have no memory controller")
    with MemoryGroup(folder) as group:
        yield group


def was_out_of_memory(returncode: int) -> bool:
    """Whether a process ended as those end that the kernel kills."""
    return returncode in (_OOM_EXIT, 128 + 9)


def _place() -> Path:
    """Inside the test's own group, which it may write where anything may be."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _ROOT / "memory" / path.lstrip("/")
        if number == "0" and not controllers and (_ROOT / "cgroup.controllers").exists():
            return _ROOT / path.lstrip("/")
    return _ROOT / "none"
