"""Streamed weights without their bytes: prepared files are holes but for small tensors, and reading fills in
no more than these.

For nights on a dry card only, where large tensors are followed and not computed. Everything else is the
product's own: which files there are, what is in which of them, where it lies between two uses, and every copy
to the card.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from pipeline.engine.streaming import checkpoint_shards, embedding_rows, prepared_weights, weight_file
from pipeline.engine.streaming.weight_file import Block, Described
from pipeline.stores.kv.formats import as_bytes
from pipeline.system.pinned_memory import sent

# What quantization says of itself is read as text, in tensors of some hundred bytes.
_SMALL_BYTES = 2**12


def without_bytes() -> None:
    """From now on, in this process."""
    changes: list[tuple[Any, str, Any]] = [
        (prepared_weights, "write_blocks", _write_hole),
        (weight_file.BlockFiles, "read", _read_small),
        (weight_file.BlockFiles, "read_row", _read_no_row),
        (checkpoint_shards.StoredTensor, "__getitem__", _empty),
        (embedding_rows, "sent", _sent_apart),
    ]
    for owner, name, replacement in changes:
        if not hasattr(owner, name):
            raise AttributeError(f"{owner.__name__} has no {name} any more: streamed weights would be read")
        setattr(owner, name, replacement)


def _write_hole(path: Path, described: Sequence[Described], tensors: Iterable[torch.Tensor]) -> list[Block]:
    """As ``write_blocks``, of which the places are kept, and small tensors."""
    sizes = [torch.Size(shape).numel() * dtype.itemsize for _, dtype, shape in described]
    begins = list(accumulate((size + -size % 64 for size in sizes), initial=weight_file.PAGE_BYTES))
    with path.open("wb") as file:
        for begin, size, tensor in zip(begins, sizes, tensors, strict=False):
            if size <= _SMALL_BYTES:
                file.seek(begin)
                file.write(as_bytes(tensor.detach().cpu().contiguous()))
        file.truncate(begins[len(sizes) - 1] + sizes[-1])
    return [
        Block(path.name, name, begin, size, dtype, shape, "")
        for (name, dtype, shape), begin, size in zip(described, begins, sizes, strict=False)
    ]


def _read_small(self: Any, blocks: Sequence[Block], into: memoryview) -> None:
    first, _ = weight_file.pages(blocks)
    for block in blocks:
        if block.bytes <= _SMALL_BYTES:
            begin = block.offset - first
            os.preadv(self._file(block.file), [into[begin : begin + block.bytes]], block.offset)


def _sent_apart(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Each in a copy of its own: of a large one nothing is carried, and which rows are meant is to arrive."""
    return [one for tensor in tensors for one in sent([tensor], device)]


def _read_no_row(_self: Any, _block: Block, _row: int, _into: memoryview) -> None:
    """Rows of embeddings are numbers, and none are computed with."""


def _empty(self: Any, _everything: Any) -> torch.Tensor:
    return torch.empty(self.shape, dtype=self.dtype)
