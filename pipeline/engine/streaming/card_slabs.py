"""Two buffers on a card through which streamed units pass, each in one copy on a stream of its own: one unit
is in use, the next is on its way.

Which buffer is free is told by an event in the computing stream, so that nobody waits on the host: neither
for the copy nor for what computes with the unit before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.engine.streaming.buffer_pool import Buffer
from pipeline.engine.streaming.weight_file import Block, pages


class CardSlabs:
    """See the module; with room for any of ``units``."""

    def __init__(self, units: Sequence[Sequence[Block]], device: torch.device) -> None:
        room = max((pages(blocks)[1] for blocks in units), default=0)
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # no types
        self._slabs = [torch.empty(room, dtype=torch.uint8, device=device) for _ in range(2)]
        for slab in self._slabs:
            slab.record_stream(self._side)  # whenever it goes, it is not used again before that is done
        self._in_use = 0

    def launched(self) -> Any:
        """The event of what has been launched so far: all that uses units before the one that is open."""
        return torch.cuda.current_stream(self._device).record_event()

    def bring(self, blocks: Sequence[Block], buffer: Buffer, free: Any) -> tuple[list[torch.Tensor], Any]:
        """``blocks`` from ``buffer`` as tensors on the card, and the event after which they are there. What
        is on its way already is given up; ``free``: see ``launched``.
        """
        first, _ = pages(blocks)
        used = blocks[-1].offset + blocks[-1].bytes - first
        slab = self._slabs[1 - self._in_use]
        with torch.cuda.stream(self._side):
            self._side.wait_event(free)
            slab[:used].copy_(buffer.bytes[:used], non_blocking=True)
            arrived = self._side.record_event()
        buffer.copied(arrived, self._side)
        raw = [slab[block.offset - first :][: block.bytes] for block in blocks]
        near = [one.view(block.dtype).view(block.shape) for one, block in zip(raw, blocks, strict=True)]
        return near, arrived

    def take(self, arrived: Any) -> None:
        """What came last is used from now on, by what is launched next."""
        self._in_use = 1 - self._in_use
        torch.cuda.current_stream(self._device).wait_event(arrived)

    def settle(self) -> None:
        """Wait for copies under way, as some may be of a unit that failed."""
        self._side.synchronize()
