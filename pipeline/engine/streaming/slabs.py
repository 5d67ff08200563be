"""Storage for units on their way: a few slabs of one size, used again and again, whatever lies in them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.engine.streaming.blocks import Block

_ALIGNED = 64  # bytes: of every kind of number, and of a processor's cache line


class Slabs:
    """Slabs that hold any of the units they were made for.

    They are not told apart by the tensors' shapes: those of 4-bit statistics differ from layer to layer, so each would have its own.
    """

    def __init__(self, units: Sequence[Sequence[Block]], *, pinned: bool) -> None:
        self._bytes = max((sum(map(_room, blocks)) for blocks in units), default=0)
        self._pinned = pinned
        self._free: list[torch.Tensor] = []
        self.made = 0

    def take(self, blocks: Sequence[Block]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """(slab, one tensor in it for each of ``blocks``), contents undefined."""
        if self._free:
            slab = self._free.pop()
        else:
            slab = torch.empty(self._bytes, dtype=torch.uint8, pin_memory=self._pinned)
            self.made += 1
        tensors, begin = [], 0
        for block in blocks:
            tensors.append(slab[begin : begin + block.bytes].view(block.dtype).view(block.shape))
            begin += _room(block)
        return slab, tensors

    def give_back(self, slab: torch.Tensor) -> None:
        """It may be filled with something else."""
        self._free.append(slab)


def _room(block: Block) -> int:
    return -(-block.bytes // _ALIGNED) * _ALIGNED
