"""Full-attention layers whose keys and values lie on disk while a batch runs: a layer is read while the one
before it computes.

A file holds (columns, rows, heads, width), so that new columns are one write at its end. What attention gets
is one copy of a layer's columns with the new ones behind them, dropped after use: at any time the memory
holds the copies of two layers. Files have no name any more once they are open: whatever ends the process,
nothing stays behind.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from pipeline.stores.kv.formats import as_bytes

# room behind the columns that are read, for those that are computed meanwhile; as many as the last pass had,
# if more
_SPARE_COLUMNS = 64
_COPIED_COLUMNS = 1024  # rows are picked from a file in stretches of so many columns
# One thread, in order: what it reads for a batch that is over keeps that batch's files until it is done, and
# is done before the first read of the next batch, so before the next batch writes.
_prefetcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kv-disk")


class _Columns:
    """One tensor of a layer in a file without a name."""

    def __init__(self, folder: Path, like: torch.Tensor) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, path = tempfile.mkstemp(dir=folder, suffix=".kv")
        os.unlink(path)  # noqa: PTH108  # as mkstemp gives it
        weakref.finalize(self, os.close, self._file)
        self.row_shape = (like.shape[0], like.shape[1], like.shape[3])
        self.dtype, self.columns = like.dtype, 0

    @property
    def _column_bytes(self) -> int:
        rows, heads, width = self.row_shape
        return rows * heads * width * self.dtype.itemsize

    def append(self, states: torch.Tensor) -> None:
        """Write (rows, heads, new columns, width) behind what is there. Raises OSError."""
        data = as_bytes(states.detach().to("cpu").permute(2, 0, 1, 3).contiguous())
        offset = self.columns * self._column_bytes
        while data:
            written = os.pwrite(self._file, data, offset)
            data, offset = data[written:], offset + written
        self.columns += states.shape[2]

    def read(self, begin: int, end: int, spare_columns: int = 0) -> torch.Tensor:
        """(columns + spare, rows, heads, width); what is spare is not filled. Raises OSError."""
        columns = torch.empty(end - begin + spare_columns, *self.row_shape, dtype=self.dtype)
        into, offset = as_bytes(columns[: end - begin]), begin * self._column_bytes
        while into:
            count = os.preadv(self._file, [into], offset)
            if not count:
                raise OSError("the file of a KV cache on disk is cut short")
            into, offset = into[count:], offset + count
        return columns

    def picked(self, folder: Path, rows: torch.Tensor) -> _Columns:
        """A copy with the rows of that index, repeats allowed."""
        copy = _Columns(
            folder, torch.empty(len(rows), self.row_shape[1], 0, self.row_shape[2], dtype=self.dtype)
        )
        for begin in range(0, self.columns, _COPIED_COLUMNS):
            part = self.read(begin, min(begin + _COPIED_COLUMNS, self.columns))
            copy.append(part.index_select(1, rows.cpu()).permute(1, 2, 0, 3))
        return copy


class DiskLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # the library's subclass hook has no types
    """See the module. Files are made in ``folder``, which must be on a disk, not in memory; None: where the
    system keeps temporary files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library's constructor has no types
        self._folder = folder or Path(tempfile.gettempdir())
        self._held: tuple[_Columns, _Columns] | None = None
        self._pending: Future[tuple[torch.Tensor, torch.Tensor]] | None = None
        self._spare_columns = _SPARE_COLUMNS

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (rows, heads, new columns, width); returns all columns, on the device of the new ones."""
        if self._held is None:
            self._held = (_Columns(self._folder, key_states), _Columns(self._folder, value_states))
            self.is_initialized = True
        self._spare_columns = max(_SPARE_COLUMNS, key_states.shape[2])
        self.start_fetch()
        pending, self._pending = self._pending, None
        assert pending is not None
        near = pending.result()
        joined = tuple(
            _behind(old, held.columns, new)
            for old, held, new in zip(near, self._held, (key_states, value_states), strict=True)
        )
        for held, new in zip(self._held, (key_states, value_states), strict=True):
            held.append(new)
        return joined[0], joined[1]

    def start_fetch(self) -> None:
        """Begin to read this layer."""
        if self._pending is None and self._held is not None:
            self._pending = _prefetcher.submit(self._read)

    def _read(self) -> tuple[torch.Tensor, torch.Tensor]:
        assert self._held is not None
        with torch.inference_mode():  # the mode is per thread
            keys, values = (held.read(0, held.columns, self._spare_columns) for held in self._held)
            return keys, values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Rows ``beam_idx``, in files of their own."""
        self._pending = None
        if self._held is not None:
            keys, values = (held.picked(self._folder, beam_idx) for held in self._held)
            self._held = (keys, values)

    def get_seq_length(self) -> int:
        """Columns on the disk."""
        return 0 if self._held is None else self._held[0].columns


def _behind(old: torch.Tensor, columns: int, new: torch.Tensor) -> torch.Tensor:
    """(rows, heads, columns + new, width) of what was read, with room behind it, and what was just
    computed.
    """
    added = new.shape[2]
    if new.device.type != "cpu" or added > len(old) - columns:
        near = old[:columns].permute(1, 2, 0, 3).to(new.device)
        return torch.cat([near, new], dim=2)
    old[columns : columns + added] = new.permute(2, 0, 1, 3)
    return old[: columns + added].permute(1, 2, 0, 3)
