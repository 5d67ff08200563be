"""Streamed weights without their bytes: prepared files are holes, and reading them fills nothing.

For nights on a dry card only, where no number is computed. Everything else is the product's own: which files
there are, what is in which of them, where it lies between two uses, and every copy to the card.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from pipeline.engine.streaming import checkpoint_shards, prepared_weights, weight_file
from pipeline.engine.streaming.weight_file import Block, Described


def without_bytes() -> None:
    """From now on, in this process."""
    prepared_weights.write_blocks = _write_hole  # type: ignore[assignment]
    weight_file.BlockFiles.read = _read_nothing  # type: ignore[method-assign]
    weight_file.BlockFiles.read_row = _read_nothing  # type: ignore[method-assign]
    checkpoint_shards.StoredTensor.__getitem__ = _empty  # type: ignore[method-assign]


def _write_hole(path: Path, described: Sequence[Described], _tensors: Iterable[torch.Tensor]) -> list[Block]:
    """As ``write_blocks``, of which only the places are kept."""
    sizes = [torch.Size(shape).numel() * dtype.itemsize for _, dtype, shape in described]
    begins = list(accumulate((size + -size % 64 for size in sizes), initial=weight_file.PAGE_BYTES))
    with path.open("wb") as file:
        file.truncate(begins[len(sizes) - 1] + sizes[-1])
    return [
        Block(path.name, name, begin, size, dtype, shape, "")
        for (name, dtype, shape), begin, size in zip(described, begins, sizes, strict=False)
    ]


def _read_nothing(self: Any, *_arguments: Any) -> None:
    del self


def _empty(self: Any, _everything: Any) -> torch.Tensor:
    return torch.empty(self.shape, dtype=self.dtype)
