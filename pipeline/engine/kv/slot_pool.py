"""Preallocated keys and values: rows in slots of a few sizes, so that a row never moves while it grows and
little is padded.

A slot class holds rows of up to ``capacity`` columns; storage of a layer is (slots, G, capacity, D) and grows
by doubling the slots. Live rows are kept in the lowest slots, so that a batch of them is a view and not a
copy.
"""

from __future__ import annotations

import torch

_SMALLEST = 64


def class_capacity(columns: int) -> int:
    """The size of slot for a row of ``columns``: 64, 96, 128, 192, 256, ...: at most half more than
    needed.
    """
    capacity = _SMALLEST
    while capacity < columns:
        capacity = capacity * 3 // 2 if capacity & (capacity - 1) == 0 else capacity * 4 // 3
    return capacity


class SlotClass:
    """Slots of one capacity, for all layers. Layers are allocated when first written."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._used: list[bool] = []

    def __len__(self) -> int:
        return sum(self._used)

    def take(self) -> int:
        """The lowest free slot."""
        if False not in self._used:
            self._used.append(False)
        slot = self._used.index(False)
        self._used[slot] = True
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back."""
        self._used[slot] = False
        while self._used and not self._used[-1]:
            self._used.pop()

    def hole(self) -> tuple[int, int] | None:
        """(highest live slot, lowest free one below it) when rows lie scattered, else None."""
        if False not in self._used:
            return None
        return len(self._used) - 1, self._used.index(False)

    def move(self, source: int, target: int, columns: int) -> None:
        """Move a row of ``columns`` to a free slot."""
        for storage in (self._keys, self._values):
            for states in storage.values():
                states[target, :, :columns] = states[source, :, :columns]
        self._used[target] = True
        self.free(source)

    def write(
        self, layer: int, slots: torch.Tensor, columns: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Put (G, n, D) at n places: slot and column of each."""
        self._room(self._keys, layer, keys)[slots, :, columns] = keys.transpose(0, 1)
        self._room(self._values, layer, values)[slots, :, columns] = values.transpose(0, 1)

    def fill(self, layer: int, slot: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put (G, n, D) into the first n columns of a slot."""
        self._room(self._keys, layer, keys)[slot, :, : keys.shape[1]] = keys
        self._room(self._values, layer, values)[slot, :, : values.shape[1]] = values

    def read(self, layer: int, slots: torch.Tensor, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(n, G, columns, D) of keys and of values: a view where the slots are the lowest n in order, else a
        copy.
        """
        keys, values = self._keys[layer], self._values[layer]
        count = len(slots)
        if self._lowest(slots):
            return keys[:count, :, :columns], values[:count, :, :columns]
        return keys[slots, :, :columns], values[slots, :, :columns]

    def release(self) -> None:
        """Give the memory back; no slot may be in use."""
        self._keys.clear()
        self._values.clear()

    @staticmethod
    def _lowest(slots: torch.Tensor) -> bool:
        return bool(slots[-1] == len(slots) - 1)  # slots are given in ascending order

    def _room(self, storage: dict[int, torch.Tensor], layer: int, states: torch.Tensor) -> torch.Tensor:
        held = storage.get(layer)
        if held is None or len(held) < len(self._used):
            slots = max(len(self._used), 2 * len(held) if held is not None else 0)
            # never NaN behind a mask
            grown = states.new_zeros(slots, states.shape[0], self.capacity, states.shape[-1])
            if held is not None:
                grown[: len(held)] = held
            storage[layer] = held = grown
        return held
