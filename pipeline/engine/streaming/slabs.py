"""Storage for units on their way: a few slabs of one size, used again and again, whatever lies in them.

A slab takes whole pages of a file as they lie on the disk, so that reads can go around the page cache straight into it. It begins at a
page, and a tensor in it has the place that it has in its page of the file; one that may not lie there is copied behind the pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.engine.streaming.blocks import PAGE_BYTES, Block, BlockFiles, pages
from pipeline.stores.kv.formats import as_bytes

_ALIGNED = 64  # bytes: of every kind of number, and of a processor's cache line


class Slab:
    """Room for any of ``units``, each of them blocks one behind another in one file; contents undefined."""

    def __init__(self, units: Sequence[Sequence[Block]], *, pinned: bool = False) -> None:
        room = max((pages(blocks)[1] + sum(map(_copied_bytes, blocks)) for blocks in units), default=0)
        storage = torch.empty(room + PAGE_BYTES, dtype=torch.uint8, pin_memory=pinned)
        self._bytes = storage[-storage.data_ptr() % PAGE_BYTES :][:room]

    def landing(self, blocks: Sequence[Block]) -> memoryview:
        """Where the pages of ``blocks`` go."""
        return as_bytes(self._bytes[: pages(blocks)[1]])

    def tensors(self, blocks: Sequence[Block]) -> list[torch.Tensor]:
        """``blocks``, whose pages have landed, as tensors that share the slab's memory."""
        first, behind = pages(blocks)
        found = []
        for block in blocks:
            begin = block.offset - first
            raw = self._bytes[begin : begin + block.bytes]
            if _copied_bytes(block):
                raw = self._bytes[behind : behind + block.bytes].copy_(raw)
                behind += _copied_bytes(block)
            found.append(raw.view(block.dtype).view(block.shape))
        return found


def _copied_bytes(block: Block) -> int:
    """Room for a copy of a block that does not lie where its kind of number may; 0 for others. Both kinds together stay aligned."""
    return -(-max(block.bytes, 1) // _ALIGNED) * _ALIGNED if block.offset % block.dtype.itemsize else 0


def load(files: BlockFiles, blocks: Sequence[Block], *, pinned: bool = False) -> list[torch.Tensor]:
    """``blocks``, one behind another in one file, in memory of their own. Raises Damaged, or OSError."""
    slab = Slab([blocks], pinned=pinned)
    files.read(blocks, slab.landing(blocks))
    return slab.tensors(blocks)


class Slabs:
    """Slabs that hold any of the units they were made for.

    They are not told apart by the tensors' shapes: those of 4-bit statistics differ from layer to layer, so each would have its own.
    """

    def __init__(self, units: Sequence[Sequence[Block]], *, pinned: bool) -> None:
        self._units, self._pinned = units, pinned
        self._free: list[Slab] = []
        self.made = 0

    def take(self) -> Slab:
        """One that nobody uses."""
        if self._free:
            return self._free.pop()
        self.made += 1
        return Slab(self._units, pinned=self._pinned)

    def give_back(self, slab: Slab) -> None:
        """It may be filled with something else."""
        self._free.append(slab)
