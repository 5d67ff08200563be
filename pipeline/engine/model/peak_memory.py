"""The most memory that a stretch of work held, on the graphics cards or resident in this process; a heap that
gives back what is freed.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from pipeline.system.process_memory import peak_resident_bytes


class PeakMemory:
    """Context manager; ``bytes`` is the peak inside it: of CUDA allocations where the work is ``on_card``,
    else of the resident set.

    On Linux the kernel's mark is set back first; elsewhere it is that of the whole life of the process.
    """

    bytes: int = 0

    def __init__(self, *, on_card: bool) -> None:
        self._on_card = on_card

    def __enter__(self) -> Self:
        if self._on_card:
            torch.cuda.init()  # type: ignore[no-untyped-call]  # there are no statistics before
            for card in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(card)
        else:
            with contextlib.suppress(OSError):  # not Linux, or not allowed: the mark stays
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._on_card:
            self.bytes = sum(
                torch.cuda.max_memory_allocated(card) for card in range(torch.cuda.device_count())
            )
        else:
            self.bytes = peak_resident_bytes()


# glibc's mallopt: blocks from this size on are mapped, and given back when they are freed; free memory at the
# heap's end is given back from this size on. What it sets by itself, as programs go on, ends at the usual
# values below.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LOADING_BYTES, _USUAL_BYTES = 1 << 20, 32 << 20


@contextlib.contextmanager
def large_blocks_given_back() -> Iterator[None]:
    """Inside, as ``give_large_blocks_back``. Afterwards what smaller blocks have left free is given back,
    too, and from then on blocks stay in the heap, where computing finds them without asking the system.

    Weights that are quantized pass through such blocks: six runs of the demo model in nf4 held 470 to 820 MiB
    of heap at most, and six with this 470 to 500.
    """
    give_large_blocks_back()
    try:
        yield
    finally:
        _call("mallopt", _MMAP_THRESHOLD, _USUAL_BYTES)
        _call("mallopt", _TRIM_THRESHOLD, 2 * _USUAL_BYTES)
        _call("malloc_trim", 0)


def give_large_blocks_back() -> None:
    """Let the system have freed blocks of 1 MiB and more back at once. glibc keeps them in its heap, in
    pieces, once a few were freed.
    """
    _call("mallopt", _MMAP_THRESHOLD, _LOADING_BYTES)


def _call(name: str, *values: int) -> None:
    """A function of glibc; nothing where another C library has none of that name."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*values)
