"""KV memory of the rows in the model. It is asked for in pages; for now a row's pages are one slot of a
``SlotClass``.

The pool knows who lies where: whatever fails, a row that leaves gives its slot back, and ``clear`` gives
everything back at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.engine.kv.slot_pool import SlotClass, class_capacity
from pipeline.engine.packed.attention import Prefix
from pipeline.engine.packed.sequence import PAGE_TOKENS


@dataclass(slots=True, eq=False)
class Row:
    """One document in the model: its prompt behind the shared prefix, where it is cached, how far it has got.

    ``ids`` are the tokens still to be read of the prompt (without the prefix); ``cached`` of them are in the
    slot.
    """

    ids: Sequence[int]
    prefix: Prefix | None
    storage: SlotClass | None = None
    slot: int = -1
    cached: int = 0

    @property
    def start(self) -> int:
        """Position of the row's first own token."""
        return self.prefix.tokens if self.prefix else 0


def pages_for(tokens: int) -> int:
    """Pages that the pool takes for a row of ``tokens``: slots come in a few sizes."""
    return class_capacity(tokens) // PAGE_TOKENS


class PagePool:
    """See the module."""

    def __init__(self) -> None:
        self._classes: dict[int, SlotClass] = {}
        self._rows: dict[int, dict[int, Row]] = {}

    @property
    def pages(self) -> int:
        """Taken by rows."""
        return sum(pages_for(capacity) * len(rows) for capacity, rows in self._rows.items())

    def place(self, row: Row, pages: int) -> None:
        """Give ``row`` room for ``pages`` of own tokens."""
        capacity = class_capacity(pages * PAGE_TOKENS)
        storage = self._classes.setdefault(capacity, SlotClass(capacity))
        row.slot = storage.take()
        row.storage = storage
        self._rows.setdefault(capacity, {})[row.slot] = row

    def settle(self, row: Row) -> None:
        """Copy the row's prefix into its slot, which must be empty: from then on it is the row's own."""
        prefix, storage = row.prefix, row.storage
        assert prefix is not None
        assert storage is not None
        for layer, (keys, values) in prefix.layers.items():
            storage.fill(layer, row.slot, keys[0], values[0])
        row.prefix, row.cached = None, prefix.tokens

    def leave(self, row: Row) -> None:
        """Free the row's slot and close the gap with the class's last row, so that the live ones stay side by
        side.
        """
        storage = row.storage
        if storage is None:
            return
        rows = self._rows[storage.capacity]
        del rows[row.slot]
        storage.free(row.slot)
        row.storage = None
        hole = storage.hole()
        if hole is not None:
            last = rows[hole[0]]
            storage.move(last.slot, hole[1], last.cached)
            del rows[last.slot]
            last.slot = hole[1]
            rows[last.slot] = last
        if not rows:
            storage.release()

    def clear(self) -> None:
        """All rows leave, whatever state they are in, and the memory is given back."""
        for rows in self._rows.values():
            for row in rows.values():
                row.storage = None
        self._rows.clear()
        self._classes.clear()
