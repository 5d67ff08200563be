"""Embeddings of which only the rows in use are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.engine.streaming.buffer_pool import load
from pipeline.engine.streaming.weight_file import Block, BlockFiles
from pipeline.stores.kv.formats import as_bytes
from pipeline.system.pinned_memory import sent


class RowTable:
    """A matrix stored in pieces of rows."""

    def __init__(self, files: BlockFiles, blocks: Sequence[Block]) -> None:
        self._files, self._blocks = files, blocks
        self._step = blocks[0].shape[0]
        self._width = blocks[0].shape[1]

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """(len(indices), width) of these rows; ``indices`` is on the CPU."""
        found = torch.empty(len(indices), self._width, dtype=self._blocks[0].dtype)
        data, row_bytes = as_bytes(found), self._width * found.element_size()
        for place, index in enumerate(indices.tolist()):
            block = self._blocks[index // self._step]
            self._files.read_row(block, index % self._step, data[place * row_bytes : (place + 1) * row_bytes])
        return found

    def whole(self) -> torch.Tensor:
        """All rows."""
        return torch.cat([load(self._files, [block])[0] for block in self._blocks])


def place_tables(
    model: Any, files: BlockFiles, stored: Mapping[str, Sequence[Block]], device: torch.device
) -> int:
    """Let embeddings read their rows as they are asked for; tables that are used otherwise are loaded.
    Returns the bytes of those.
    """
    loaded = 0
    for path, module in model.named_modules():
        blocks = stored.get(f"{path}.weight", ())
        if not (isinstance(module, torch.nn.Embedding) and blocks):
            continue
        table = RowTable(files, blocks)
        if len(inspect.signature(type(module).forward).parameters) == 2:  # self and ids
            module.padding_idx = (
                None  # it matters for gradients only, and is no row of the few that are there
            )
            # an attribute of this one module
            module.forward = _gathering(module, table, device)  # type: ignore[assignment, method-assign]
        else:
            whole: Any = table.whole().to(device)
            module._parameters["weight"] = whole  # noqa: SLF001  # no checks wanted
            loaded += module.weight.numel() * module.weight.element_size()
    return loaded


def _gathering(
    module: torch.nn.Embedding, table: RowTable, device: torch.device
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The module's own forward over a table of the rows that ``ids`` name, so that scaling and the like stay
    the model's.
    """
    own, parameters = module.forward, module._parameters  # noqa: SLF001  # as above

    def forward(ids: torch.Tensor) -> torch.Tensor:
        distinct, places = torch.unique(ids.cpu(), return_inverse=True)
        empty, rows = parameters["weight"], table.rows(distinct)
        if device.type == "cuda":
            rows, places = sent((rows, places), device)
        parameters["weight"] = rows  # type: ignore[assignment]
        try:
            return own(places)
        finally:
            parameters["weight"] = empty

    return forward
