"""Host memory whose pages stay where they are, so that a card reads and writes them by itself: exactly as
much as is asked for, in whole pages.

torch's own pinned memory comes in powers of two and is kept when it is let go: a tier of 4.1 GiB took 8.
Registering pages of our own with the driver (cudaHostRegister) takes what they are and works for any size;
splitting a tier into powers of two would have made several copies of what is one. Registering has to touch
every page, so what comes back is used again for what fits it closely, and else given back to the system
before more is registered. torch knows nothing of these pages: whoever lets them be copied says by which event
the copy is done, and nobody else gets them before it.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

_ALIGNED = 64  # bytes: of every kind of number
_LOOSE = 4  # a block may be larger than what is asked for by one of so many parts
_WAITED_BYTES = (
    1 << 20
)  # of so many it pays to wait for a copy; smaller ones lie in a few blocks that take turns


class Done(Protocol):
    """As ``torch.cuda.Event``: what is waited for before memory is used for something else."""

    def synchronize(self) -> None:
        """Wait until it is done."""

    def query(self) -> bool:
        """Whether it is."""


class _Pages:
    """Registered pages; ``bytes`` is a tensor over them that never leaves this module but as a view."""

    def __init__(self, size_bytes: int) -> None:
        import torch

        self.size_bytes = size_bytes
        self._map: mmap.mmap | None = mmap.mmap(-1, size_bytes)
        with torch.inference_mode(mode=False):  # or nobody outside of that mode could write into it
            self.bytes: Any = torch.frombuffer(self._map, dtype=torch.uint8)
        self._registered: int | None = self.bytes.data_ptr()
        runtime = _runtime()
        if runtime is None or int(runtime.cudaHostRegister(self._registered, size_bytes, 0)):
            self._registered = self._map = None  # a driver that cannot: torch's own is rounded up, but there
            self.bytes = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def give_back(self) -> None:
        """To the system. Nothing may be under way to or from them."""
        if self._registered is not None:
            _runtime().cudaHostUnregister(self._registered)
        self._registered = self._map = self.bytes = None


def _runtime() -> Any:
    """CUDA's own functions, None where this build of torch has none."""
    import torch

    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # no types


@dataclass(eq=False)
class PinnedBlock:
    """``bytes``: (size,) uint8, contents undefined. Comes back when this object is let go, not before the
    ``copied`` events: views of it must not outlive it.
    """

    bytes: Any
    _events: dict[Any, Done] = field(default_factory=dict)

    def copied(self, event: Done, stream: Any = None) -> None:
        """Copies from or to it that are under way on ``stream`` are done with ``event``, and so are those
        told of before it.
        """
        self._events[stream] = event

    def wait(self) -> None:
        """Until no copy is under way."""
        for event in self._events.values():
            event.synchronize()
        self._events.clear()


class PinnedMemory:
    """All of one process. Blocks may be taken and let go in any thread."""

    def __init__(self) -> None:
        self._mine = threading.Lock()
        self._free: list[_Pages] = []
        self._coming: deque[tuple[_Pages, dict[Any, Done]]] = deque()
        self._live_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Registered: in use, or waiting to be used again."""
        with self._mine:
            self._collect(wait=True)
            return self._live_bytes + sum(pages.size_bytes for pages in self._free)

    def take(self, size_bytes: int) -> PinnedBlock:
        """At least ``size_bytes``: a block that came back and is at most a quarter too large, else new pages,
        for which others that wait to be used again are given back.
        """
        wanted = -(-max(size_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._mine:
            self._collect(wait=False)
            pages = self._fitting(wanted)
            if pages is None:
                self._collect(wait=wanted >= _WAITED_BYTES)
                pages = self._fitting(wanted) or self._fresh(wanted)
            self._live_bytes += pages.size_bytes
        events: dict[Any, Done] = {}
        block = PinnedBlock(pages.bytes[:size_bytes], events)
        weakref.finalize(block, self._coming.append, (pages, events)).atexit = False
        return block

    def release(self) -> None:
        """Give back what waits to be used again."""
        with self._mine:
            self._collect(wait=True)
            while self._free:
                self._free.pop().give_back()

    def _fitting(self, wanted: int) -> _Pages | None:
        fitting = [pages for pages in self._free if wanted <= pages.size_bytes <= wanted + wanted // _LOOSE]
        best = min(fitting, key=lambda pages: pages.size_bytes, default=None)
        if best is not None:
            self._free.remove(best)
        return best

    def _fresh(self, wanted: int) -> _Pages:
        made_room = 0
        while self._free and made_room < wanted:
            made_room += self._free[-1].size_bytes
            self._free.pop().give_back()
        return _Pages(wanted)

    def _collect(self, *, wait: bool) -> None:
        """Take in what was let go: only here, as an object may be let go in the middle of anything. Without
        ``wait``, that of which a copy is under way stays where it is.
        """
        for _ in range(len(self._coming)):
            pages, events = self._coming.popleft()
            under_way = [event for event in events.values() if not event.query()]
            if under_way and not wait:
                self._coming.append((pages, events))
                continue
            for event in under_way:
                event.synchronize()
            self._live_bytes -= pages.size_bytes
            self._free.append(pages)


pinned_memory = PinnedMemory()
"""Of this process; empty where there is no card."""


def sent(tensors: Sequence[Any], device: Any) -> list[Any]:
    """Contiguous ``tensors`` of host memory on the card ``device``, in one copy in its current stream that
    nobody waits for.
    """
    import torch

    sizes = [-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors]
    block, begins = pinned_memory.take(sum(sizes)), [sum(sizes[:place]) for place in range(len(sizes))]
    for tensor, begin in zip(tensors, begins, strict=True):
        block.bytes[begin : begin + tensor.nbytes].view(tensor.dtype).copy_(tensor.view(-1))
    near = block.bytes.to(device, non_blocking=True)
    stream = torch.cuda.current_stream(device)
    block.copied(stream.record_event(), stream)
    return [
        near[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, begin in zip(tensors, begins, strict=True)
    ]
