"""The most memory that a stretch of work held: on the graphics cards, or resident in this process."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from pipeline.vitals import peak_resident_bytes


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
