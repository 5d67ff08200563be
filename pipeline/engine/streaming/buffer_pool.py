"""Storage for units on their way: a few buffers of one size, used again and again, whatever lies in them.

A buffer takes whole pages of a file as they lie on the disk, so that reads can go around the page cache
straight into it. It begins at a page, and a tensor in it has the place that it has in its page of the file.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.engine.streaming.weight_file import PAGE_BYTES, Block, BlockFiles, pages
from pipeline.stores.kv.formats import as_bytes
from pipeline.system.pinned_memory import Done, PinnedBlock, pinned_memory


class Buffer:
    """Room for any of ``units``, each of them blocks one behind another in one file; contents undefined."""

    def __init__(self, units: Sequence[Sequence[Block]], *, pinned: bool = False) -> None:
        room = max((pages(blocks)[1] for blocks in units), default=0)
        self._block: PinnedBlock | None = pinned_memory.take(room) if pinned else None
        if self._block is not None:  # begins at a page
            self.bytes: torch.Tensor = self._block.bytes
        else:
            storage = torch.empty(room + PAGE_BYTES, dtype=torch.uint8)
            self.bytes = storage[-storage.data_ptr() % PAGE_BYTES :][:room]

    def landing(self, blocks: Sequence[Block]) -> memoryview:
        """Where the pages of ``blocks`` go."""
        return as_bytes(self.bytes[: pages(blocks)[1]])

    def copied(self, event: Done, stream: object) -> None:
        """A copy of it is on its way to a card on ``stream``, done with ``event``."""
        if self._block is not None:
            self._block.copied(event, stream)

    def wait(self) -> None:
        """Until no copy of it is under way."""
        if self._block is not None:
            self._block.wait()

    def tensors(self, blocks: Sequence[Block]) -> list[torch.Tensor]:
        """``blocks``, whose pages have landed, as tensors that share the buffer's memory; of a pinned one,
        only as long as the buffer is held.
        """
        first, _ = pages(blocks)
        raw = [self.bytes[block.offset - first :][: block.bytes] for block in blocks]
        return [
            bytes_of.view(block.dtype).view(block.shape) for bytes_of, block in zip(raw, blocks, strict=True)
        ]


def filled(files: BlockFiles, blocks: Sequence[Block], *, pinned: bool = False) -> Buffer:
    """A buffer that holds ``blocks``, one behind another in one file. Raises Damaged, or OSError."""
    buffer = Buffer([blocks], pinned=pinned)
    files.read(blocks, buffer.landing(blocks))
    return buffer


def load(files: BlockFiles, blocks: Sequence[Block]) -> list[torch.Tensor]:
    """``blocks``, one behind another in one file, in memory of their own. Raises Damaged, or OSError."""
    return filled(files, blocks).tensors(blocks)


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
        """One that nobody uses; waits for a copy of what was in it."""
        if self._free:
            buffer = self._free.pop()
            buffer.wait()
            return buffer
        self.made += 1
        return Buffer(self._units, pinned=self._pinned)

    def give_back(self, buffer: Buffer) -> None:
        """It may be filled with something else."""
        self._free.append(buffer)
