"""Full-attention layers of a model on a card whose keys and values lie in pinned host memory: each passes
through the card's two buffers when it computes, and only its new columns are written back.

A layer is one block of (columns, rows x (heads x width of keys + heads x width of values)): what there is of
it is one copy, new columns are another at its end, and attention gets views of the buffer. Rows are taken out
and joined on the host. It is never on the card as a whole but while it computes, also when it comes from the
store.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from pipeline.engine.kv.card_window import CardWindow, window_of
from pipeline.system.pinned_memory import PinnedBlock, pinned_memory

_COPIED_COLUMNS = 1024  # rows are picked in stretches of so many columns
_KeysValues = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class _Form:
    """What one column is made of."""

    rows: int
    heads: tuple[int, int]
    widths: tuple[int, int]
    dtype: torch.dtype

    @classmethod
    def of(cls, keys: torch.Tensor, values: torch.Tensor) -> _Form:
        return cls(
            len(keys), (keys.shape[1], values.shape[1]), (keys.shape[-1], values.shape[-1]), keys.dtype
        )

    @property
    def column_bytes(self) -> int:
        return self.dtype.itemsize * self.rows * sum(map(int.__mul__, self.heads, self.widths))

    def views(self, data: torch.Tensor, columns: int) -> _KeysValues:
        """(rows, heads, columns, width) of keys and of values in ``data``, bytes."""
        flat = data[: columns * self.column_bytes].view(self.dtype).view(columns, -1)
        cut = self.rows * self.heads[0] * self.widths[0]
        keys, values = (
            part.view(columns, self.rows, heads, width).permute(1, 2, 0, 3)
            for part, heads, width in zip(
                (flat[:, :cut], flat[:, cut:]), self.heads, self.widths, strict=True
            )
        )
        return keys, values


class PinnedLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # the library's subclass hook has no types
    """See the module. There is room for ``reserve_columns``; beyond that it grows by a quarter, which waits
    for the card. ``lent`` False: what attention gets is its own, for models that keep it for later layers.
    """

    def __init__(self, reserve_columns: int = 0, *, lent: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library's constructor has no types
        self.columns = 0
        self.block: PinnedBlock | None = None
        self.following: weakref.ref[Any] | None = None
        self._form: _Form | None = None
        self._reserve_columns = reserve_columns
        self._lent = lent
        self.window: CardWindow | None = None

    @property
    def column_bytes(self) -> int:
        """Of one column, all rows, keys and values."""
        assert self._form is not None
        return self._form.column_bytes

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> _KeysValues:
        """Append (rows, heads, new columns, width); returns all columns, on the device of the new ones."""
        begin, total = self.columns, self.columns + key_states.shape[2]
        form = self._made_room(_Form.of(key_states, value_states), total)
        if self.window is None:
            self.window = window_of(key_states.device)
        keys, values = form.views(self.window.enter(self, total), total)
        keys[:, :, begin:] = key_states
        values[:, :, begin:] = value_states
        self.columns = total
        self.window.leave(self, begin)
        return (keys, values) if self._lent else (keys.clone(), values.clone())

    def fill(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Hold (rows, heads, columns, width) of keys and values that lie in host memory."""
        self.block, self.columns = None, 0
        columns = keys.shape[2]
        form = self._made_room(_Form.of(keys, values), columns)
        for place, given in zip(form.views(self._bytes, columns), (keys, values), strict=True):
            place.copy_(given)
        self.columns = columns

    def on_host(self) -> _KeysValues:
        """All columns as views of host memory, once they have arrived there. Waits for that."""
        assert self._form is not None
        assert self.block is not None
        self.block.wait()
        return self._form.views(self._bytes, self.columns)

    def reserve(self, columns: int) -> None:
        """From the next copy on, have room for ``columns`` in all."""
        self._reserve_columns = max(self._reserve_columns, columns)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Rows ``beam_idx``, in a block of their own."""
        if self.block is None or self._form is None:
            return
        source, columns, index = self.on_host(), self.columns, beam_idx.cpu()
        self.block, self.columns = None, 0
        form = self._made_room(replace(self._form, rows=len(index)), columns)
        for given, place in zip(source, form.views(self._bytes, columns), strict=True):
            for begin in range(0, columns, _COPIED_COLUMNS):
                part = slice(begin, min(begin + _COPIED_COLUMNS, columns))
                place[:, :, part] = given[:, :, part].index_select(0, index)
        self.columns = columns

    def join(self, layers: Sequence[PinnedLayer], reserve_columns: int) -> None:
        """Hold the rows of all ``layers``, in order, padded with zeros on the left; they are emptied."""
        sources = [layer.on_host() for layer in layers if layer.block is not None]
        columns = max((layer.columns for layer in layers), default=0)
        self.block, self.columns = None, 0
        if not sources:
            return
        form = replace(_Form.of(*sources[0]), rows=sum(len(keys) for keys, _ in sources))
        self._reserve_columns = max(reserve_columns, columns)
        self._made_room(form, columns)
        for kind, place in enumerate(form.views(self._bytes, columns)):
            row = 0
            for source in sources:
                part, gap = place[row : row + len(source[kind])], columns - source[kind].shape[2]
                part[:, :, :gap] = 0
                part[:, :, gap:] = source[kind]
                row += len(part)
        self.columns = columns
        for layer in layers:
            layer.reset()

    def reset(self) -> None:
        """Hold nothing."""
        self.block, self.columns, self.is_initialized = None, 0, False

    def crop(self, tokens_to_remove: int) -> None:
        """Remove columns (a negative number of them)."""
        self.columns += min(tokens_to_remove, 0)

    def get_seq_length(self) -> int:
        """Columns in host memory."""
        return self.columns

    @property
    def _bytes(self) -> torch.Tensor:
        assert self.block is not None
        found: torch.Tensor = self.block.bytes
        return found

    def _made_room(self, form: _Form, columns: int) -> _Form:
        """A block for ``columns`` of this form, with what is there already at its beginning."""
        self._form, self.is_initialized = form, True
        if self.block is not None and columns * form.column_bytes <= len(self.block.bytes):
            return form
        old, held = self.block, self.columns * form.column_bytes
        grown = columns + columns // 4 if old is not None else columns
        self.block = pinned_memory.take(max(grown, self._reserve_columns) * form.column_bytes)
        if old is not None and held:
            old.wait()
            self._bytes[:held] = old.bytes[:held]
        return form


def linked(layers: Sequence[Any]) -> None:
    """Each pinned layer among ``layers`` is followed by the next one, the last by the first, until they are
    seen in another order.
    """
    pinned = [layer for layer in layers if isinstance(layer, PinnedLayer)]
    for layer, following in zip(pinned, [*pinned[1:], *pinned[:1]], strict=True):
        layer.following = weakref.ref(following)
