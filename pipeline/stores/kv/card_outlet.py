"""What is to be written and lies on a card: brought to pinned host memory on a stream of its own, beside what
the card computes.

The tensors are let go as soon as their copy is launched: torch keeps their memory from being used again until
it is done. What is on its way is bounded; who puts more waits for the oldest copy, between two passes, while
the card goes on with what was launched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pipeline.system.pinned_memory import PinnedBlock, pinned_memory

_ALIGNED = 64  # bytes: of every kind of number, and of a processor's cache line
_Tensors = Mapping[str, torch.Tensor]


class CardOutlet:
    """See the module; at most ``most_bytes`` on their way, or one write that is larger alone. One thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._streams: dict[torch.device, Any] = {}
        self._leaving: deque[tuple[Any, int]] = deque()

    def brought_home(
        self, tensors: _Tensors, *, copy: bool
    ) -> tuple[dict[str, torch.Tensor], Callable[[], None]]:
        """``tensors`` in host memory: there once what is returned with them has been called, and as long as
        that is held. ``copy``: those on a card may change from now on.
        """
        self._make_room(sum(map(_room_of, tensors.values())))
        home: dict[str, torch.Tensor] = {}
        blocks = []
        for device in {tensor.device for tensor in tensors.values()}:
            mine = {name: tensor for name, tensor in tensors.items() if tensor.device == device}
            block, places = _places(mine)
            home |= places
            blocks.append(block)
            if device.type == "cuda":
                self._launch(device, mine, places, block, copy=copy)
            else:
                for name, tensor in mine.items():
                    home[name].copy_(tensor)

        def wait() -> None:
            for block in blocks:
                block.wait()

        return {name: home[name] for name in tensors}, wait

    def _launch(
        self, device: torch.device, tensors: _Tensors, home: _Tensors, block: PinnedBlock, *, copy: bool
    ) -> None:
        side = self._streams.get(device)
        if side is None:
            side = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # no types
        ready = {name: tensor.clone() if copy else tensor for name, tensor in tensors.items()}
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for name, tensor in ready.items():
                home[name].copy_(tensor, non_blocking=True)
                tensor.record_stream(side)
        event = side.record_event()
        block.copied(event, side)
        self._leaving.append((event, sum(tensor.nbytes for tensor in ready.values())))

    def _make_room(self, size_bytes: int) -> None:
        while self._leaving:
            event, _ = self._leaving[0]
            if not event.query():
                if sum(leaving for _, leaving in self._leaving) + size_bytes <= self._most_bytes:
                    return
                event.synchronize()
            self._leaving.popleft()


def _room_of(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNED) * _ALIGNED


def _places(tensors: _Tensors) -> tuple[PinnedBlock, dict[str, torch.Tensor]]:
    """A block with room for ``tensors``, and a tensor like each of them in it."""
    block = pinned_memory.take(sum(map(_room_of, tensors.values())))
    places, begin = {}, 0
    for name, tensor in tensors.items():
        raw = block.bytes[begin : begin + tensor.nbytes]
        places[name] = raw.view(tensor.dtype).view(tensor.shape)
        begin += _room_of(tensor)
    return block, places


def on_card(tensors: _Tensors) -> bool:
    """Whether any of them is."""
    return any(tensor.is_cuda for tensor in tensors.values())
