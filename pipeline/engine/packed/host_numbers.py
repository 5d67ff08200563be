"""The whole numbers of a pass, sent to its device by one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pipeline.engine.transfers import sent


@dataclass(slots=True)
class HostNumbers:
    """Numbers that are noted on the host, list by list, and then ``send`` once."""

    _values: list[int] = field(default_factory=list)

    def note(self, values: Sequence[int]) -> slice:
        """Where ``values`` will be."""
        begin = len(self._values)
        self._values += values
        return slice(begin, begin + len(values))

    def send(self, device: torch.device) -> DeviceNumbers:
        """All that was noted, on ``device`` or on its way there."""
        return DeviceNumbers(sent(self._values, torch.int32, device))


class DeviceNumbers:
    """What was noted, as a device's kernels take it: bounds of sequences in 32 bits, places in 64."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._short, self._long = numbers, numbers.long()

    def short(self, where: slice) -> torch.Tensor:
        """int32 (n,)."""
        return self._short[where]

    def long(self, where: slice) -> torch.Tensor:
        """int64 (n,)."""
        return self._long[where]
