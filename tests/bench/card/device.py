"""The pretended card of this process, as measurements want it: memory, counts, and failing on purpose."""

from __future__ import annotations

from dataclasses import dataclass

import torch  # noqa: F401  # first: the card comes with it

from tests.pretend_card.extension import card


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the card, in bytes: ``peak_bytes`` is everything that was held at once since ``begin``, context and
    other programs included; ``reserved_bytes`` what the allocator holds now.
    """

    peak_bytes: int
    reserved_bytes: int
    out_of_memory: int


class Device:
    """See the module."""

    def __init__(self) -> None:
        self._card = card
        self._ooms = 0

    @property
    def total_bytes(self) -> int:
        """Of the card."""
        return int(self._card.memory(0)["total"])

    @property
    def allocated_bytes(self) -> int:
        """By tensors, now."""
        return int(self._card.memory(0)["allocated"])

    @property
    def peak_allocated_bytes(self) -> int:
        """By tensors, the most since ``begin``."""
        return int(self._card.memory(0)["peak_allocated"])

    def begin(self) -> None:
        """Peaks and failures count from now on."""
        self._card.reset_peak(0)
        self._ooms = int(self._card.memory(0)["ooms"])

    def memory(self) -> Memory:
        """Since ``begin``."""
        found = self._card.memory(0)
        held = int(found["total"]) - int(found["free"])
        peak = held + int(found["peak_reserved"]) - int(found["reserved"])
        return Memory(peak, int(found["reserved"]), int(found["ooms"]) - self._ooms)

    def counts(self) -> dict[str, int]:
        """Launches, host waits, bytes each way and calls of each operator (``op NAME``) so far."""
        return {str(name): int(value) for name, value in self._card.counts().items()}

    def races(self) -> list[str]:
        """First lines of what was found unordered."""
        return [str(race).splitlines()[0] for race in self._card.races()]

    def run_out_of_memory_soon(self, launches: int) -> None:
        """The allocation behind so many launches more fails once."""
        self._card.fail_after(launches, "oom")
