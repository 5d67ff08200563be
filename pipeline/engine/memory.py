"""The most memory that a stretch of work held: on the graphics cards, or resident in this process."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import torch


class PeakMemory:
    """Context manager; ``bytes`` is the peak inside it: of CUDA allocations where there are cards, else of the resident set.

    On Linux the kernel's mark is set back first; elsewhere it is that of the whole life of the process.
    """

    bytes: int = 0

    def __enter__(self) -> Self:
        if torch.cuda.is_available():
            for card in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(card)
        else:
            with contextlib.suppress(OSError):  # not Linux, or not allowed: the mark stays
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if torch.cuda.is_available():
            self.bytes = sum(torch.cuda.max_memory_allocated(card) for card in range(torch.cuda.device_count()))
        else:
            self.bytes = peak_resident_bytes()


def peak_resident_bytes() -> int:
    """High-water mark of this process's resident memory; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii", errors="replace"))
        if found:
            return int(found[1]) * 1024
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
