"""Two buffers on a card, through which layers pass whose columns lie in host memory: one layer is in use, the
next is on its way, on a stream of its own.

What is next is what came next the last time, whichever cache it belongs to: micro-batches that go side by
side through the layers take turns. Order is kept by events between the two streams alone; the host never
waits. At the moment at which a layer's new columns are known, everything that attended to the layer before it
has been launched, so one event there lets the side stream bring the new columns home and fill the other
buffer.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pipeline.system.pinned_memory import PinnedBlock


class Passing(Protocol):
    """A layer in host memory: ``columns`` of ``column_bytes`` each lie in ``block``, one behind another.

    Whatever happens to them but that more are added, they are in another block afterwards.
    """

    columns: int
    block: PinnedBlock | None
    window: CardWindow | None
    following: weakref.ref[Any] | None

    @property
    def column_bytes(self) -> int:
        """Of one column, all rows, keys and values."""


@dataclass
class _Arrival:
    block: weakref.ref[PinnedBlock]
    place: int
    columns: int


class CardWindow:
    """See the module."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # no types
        self._buffers: list[torch.Tensor | None] = [None, None]
        self._in_use = 0
        self._busy: list[Any] = [None, None]  # until when each is read or filled on the side stream
        self._arrival: _Arrival | None = None
        self._last: weakref.ref[Any] | None = None

    def enter(self, layer: Passing, columns: int) -> torch.Tensor:
        """The bytes of ``columns`` on the card, of which those that ``layer`` has in host memory are filled
        in by the time that what is launched next runs. Valid until the layer after the next one enters.
        """
        before = self._last() if self._last is not None else None
        if before is not None and before is not layer:
            before.following = weakref.ref(layer)
        self._last = weakref.ref(layer)
        arrival, self._arrival = self._arrival, None
        if arrival is None or arrival.block() is not layer.block or arrival.columns < layer.columns:
            arrival = self._fetch(layer, 1 - self._in_use, self._now()) if layer.columns else None
        self._in_use = arrival.place if arrival is not None else 1 - self._in_use
        if self._busy[self._in_use] is not None:  # with what arrives, or with what goes home from there
            torch.cuda.current_stream(self._device).wait_event(self._busy[self._in_use])
        return self._room(self._in_use, layer)[: columns * layer.column_bytes]

    def leave(self, layer: Passing, begin: int) -> None:
        """The columns from ``begin`` to its last one were written into what ``enter`` gave: they go home, and
        the next layer comes.
        """
        known = self._now()
        part = slice(begin * layer.column_bytes, layer.columns * layer.column_bytes)
        with torch.cuda.stream(self._side):
            self._side.wait_event(known)
            _bytes(layer)[part].copy_(self._room(self._in_use, layer)[part], non_blocking=True)
        self._done(layer, self._in_use)
        following = layer.following() if layer.following is not None else None
        if following in (None, layer) or following.window is not self:  # it computes on another card
            return
        if following.columns:
            self._arrival = self._fetch(following, 1 - self._in_use, known)

    def _fetch(self, layer: Passing, place: int, free: Any) -> _Arrival:
        """Begin to copy what ``layer`` has into a buffer that nothing uses after the event ``free``."""
        part = slice(layer.columns * layer.column_bytes)
        into = self._room(place, layer)
        with torch.cuda.stream(self._side):
            self._side.wait_event(free)
            into[part].copy_(_bytes(layer)[part], non_blocking=True)
        assert layer.block is not None
        self._done(layer, place)
        return _Arrival(weakref.ref(layer.block), place, layer.columns)

    def _done(self, layer: Passing, place: int) -> None:
        """Note what was launched last on the side stream, between the layer's block and a buffer."""
        self._busy[place] = self._side.record_event()
        assert layer.block is not None
        layer.block.copied(self._busy[place], self._side)

    def _now(self) -> Any:
        return torch.cuda.current_stream(self._device).record_event()

    def _room(self, place: int, layer: Passing) -> torch.Tensor:
        """The buffer, with room for as much as the layer's block."""
        buffer, needed = self._buffers[place], len(_bytes(layer))
        if buffer is None or len(buffer) < needed:
            self._buffers[place] = buffer = None  # before there is another one
            with torch.inference_mode(mode=False):  # it outlives the pass that needs it first
                buffer = torch.empty(needed, dtype=torch.uint8, device=self._device)
            buffer.record_stream(self._side)  # whenever it goes, it is not used again before that is done
            self._buffers[place] = buffer
        return buffer


def _bytes(layer: Passing) -> torch.Tensor:
    assert layer.block is not None
    found: torch.Tensor = layer.block.bytes
    return found


_windows: weakref.WeakValueDictionary[torch.device, CardWindow] = weakref.WeakValueDictionary()


def window_of(device: torch.device) -> CardWindow:
    """The one of ``device``; it goes with the last layer that holds it."""
    window = _windows.get(device)
    if window is None:
        window = _windows[device] = CardWindow(device)
    return window
