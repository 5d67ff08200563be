"""How long a device takes for what it was given, without waiting for it: a card by its own events, a
processor by the clock.

A call that launches work on a card returns when it is launched; by the clock, reading a document would take
as long as its launches. Two events in the stream of the work measure what lies between them, and are read
when somebody needs the figure and the card has got there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

_MILLISECONDS = 1000.0


@dataclass(frozen=True)
class Span:
    """A stretch of a device's time. ``_begin`` and ``_end`` are events, or seconds of the clock."""

    _begin: Any
    _end: Any
    _factor: float = 1.0

    @property
    def known(self) -> bool:
        """Whether ``seconds`` needs no waiting."""
        return isinstance(self._end, float) or bool(self._end.query())

    def seconds(self) -> float:
        """Its length; waits for the card where it has not got there yet."""
        if isinstance(self._end, float):
            return self._factor * (self._end - float(self._begin))
        self._end.synchronize()
        return self._factor * float(self._begin.elapsed_time(self._end)) / _MILLISECONDS

    def times(self, factor: float) -> Span:
        """One that is ``factor`` as long."""
        return replace(self, _factor=self._factor * factor)


def lasting(seconds: float) -> Span:
    """A span whose length is known."""
    return Span(0.0, float(seconds))


class Stopwatch:
    """Begins when it is made, at what is launched next on the first of ``devices``. On the others runs work
    that is part of the same passes.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._cards = [device for device in devices if device.type == "cuda"]
        self._begin = self._now()

    def so_far(self) -> Span:
        """From its beginning to what was launched last."""
        return Span(self._begin, self._now())

    def _now(self) -> Any:
        if not self._cards:
            return time.perf_counter()
        stream = torch.cuda.current_stream(self._cards[0])
        for other in self._cards[1:]:
            stream.wait_stream(torch.cuda.current_stream(other))
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # no types
        event.record(stream)
        return event


def devices_of(model: Any) -> tuple[torch.device, ...]:
    """Where the weights of ``model`` lie, the device of its inputs first."""
    found = dict.fromkeys(parameter.device for parameter in model.parameters())
    return tuple(device for device in found if device.type != "meta")
