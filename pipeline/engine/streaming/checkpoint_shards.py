"""The tensors of a model's own safetensors files, read one at a time by explicit reads that leave no page
cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.engine.streaming.weight_file import forget
from pipeline.errors import ConfigError
from pipeline.stores.kv.formats import as_bytes

_MAX_HEADER_BYTES = 100_000_000  # as safetensors itself has it
_READ_BYTES = 16 * 2**20
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, not read yet. ``tensor[...]`` reads it, as transformers' own loading asks for
    it.
    """

    path: Path
    offset: int
    bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def __getitem__(self, _everything: Any) -> torch.Tensor:
        """The tensor, read now. Raises ConfigError where the file is cut short."""
        tensor = torch.empty(self.shape, dtype=self.dtype)
        into, offset = as_bytes(tensor), self.offset
        file = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            while into:
                count = os.preadv(file, [into[:_READ_BYTES]], offset)
                if not count:
                    raise ConfigError(f"{self.path} is damaged: it is cut short; fetch it again")
                forget(file, offset, count)
                into, offset = into[count:], offset + count
        finally:
            os.close(file)
        return tensor


def stored_tensors(files: Sequence[Path]) -> dict[str, StoredTensor]:
    """All tensors of ``files`` by name. Raises ConfigError for a damaged header or numbers that safetensors
    does not have.
    """
    found = {}
    for path in files:
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > _MAX_HEADER_BYTES:
                    raise ValueError("its header is too long")
                entries = json.loads(file.read(length))
            for name, entry in entries.items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    dtype, shape = _DTYPES[entry["dtype"]], tuple(map(int, entry["shape"]))
                    found[name] = StoredTensor(
                        path, 8 + length + int(begin), int(end) - int(begin), dtype, shape
                    )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} is damaged: its header cannot be read ({error}); fetch it again"
            ) from None
    return found
