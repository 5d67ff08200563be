"""Storage for units on their way: a few buffers of one size, used again and again, whatever lies in them.

A buffer takes whole pages of a file as they lie on the disk, so that reads can go around the page cache
straight into it. It begins at a page, and a tensor in it has the place that it has in its page of the file.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.engine.streaming.weight_file import PAGE_BYTES, Block, BlockFiles, pages
from pipeline.stores.kv.formats import as_bytes


class Buffer:
    """Room for any of ``units``, each of them blocks one behind another in one file; contents undefined."""

    def __init__(self, units: Sequence[Sequence[Block]], *, pinned: bool = False) -> None:
        room = max((pages(blocks)[1] for blocks in units), default=0)
        # Pinned memory begins at a page, and one byte above a power of two would take twice as much of it.
        storage = torch.empty(room + (0 if pinned else PAGE_BYTES), dtype=torch.uint8, pin_memory=pinned)
        self._bytes = storage if pinned else storage[-storage.data_ptr() % PAGE_BYTES :][:room]

    def landing(self, blocks: Sequence[Block]) -> memoryview:
        """Where the pages of ``blocks`` go."""
        return as_bytes(self._bytes[: pages(blocks)[1]])

    def tensors(self, blocks: Sequence[Block]) -> list[torch.Tensor]:
        """``blocks``, whose pages have landed, as tensors that share the buffer's memory."""
        first, _ = pages(blocks)
        raw = [self._bytes[block.offset - first :][: block.bytes] for block in blocks]
        return [
            bytes_of.view(block.dtype).view(block.shape) for bytes_of, block in zip(raw, blocks, strict=True)
        ]


def load(files: BlockFiles, blocks: Sequence[Block], *, pinned: bool = False) -> list[torch.Tensor]:
    """``blocks``, one behind another in one file, in memory of their own. Raises Damaged, or OSError."""
    buffer = Buffer([blocks], pinned=pinned)
    files.read(blocks, buffer.landing(blocks))
    return buffer.tensors(blocks)


class BufferPool:
    """Buffers that hold any of the units they were made for.

    They are not told apart by the tensors' shapes: those of 4-bit statistics differ from layer to layer, so
    each would have its own.
    """

    def __init__(self, units: Sequence[Sequence[Block]], *, pinned: bool) -> None:
        self._units, self._pinned = units, pinned
        self._free: list[Buffer] = []
        self.made = 0

    def take(self) -> Buffer:
        """One that nobody uses."""
        if self._free:
            return self._free.pop()
        self.made += 1
        return Buffer(self._units, pinned=self._pinned)

    def give_back(self, buffer: Buffer) -> None:
        """It may be filled with something else."""
        self._free.append(buffer)
