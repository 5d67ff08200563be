"""Cards that people have, by name: what torch tells of them, and what their datasheets promise."""

from __future__ import annotations

from dataclasses import dataclass, replace

_GIB = 2**30


@dataclass(frozen=True)
class Card:
    """A card; bytes and seconds.

    ``total_bytes`` is what torch sees, a little less than what is sold. ``flops_per_second`` is the dense
    rate in 16 bits with sums in 32. ``link_bytes_per_second`` is what PCIe moves one way.
    """

    name: str
    total_bytes: int
    multiprocessors: int
    capability: tuple[int, int]
    bytes_per_second: float
    flops_per_second: float
    link_bytes_per_second: float
    l2_bytes: int
    threads_per_multiprocessor: int = 1536
    shared_bytes_per_block: int = 101_376

    def with_capability(self, capability: tuple[int, int]) -> Card:
        """The same card, of another generation."""
        return replace(self, capability=capability)


# Sizes, multiprocessors and rates: NVIDIA's product pages and architecture whitepapers (Turing, GA102, Ada,
# Hopper, Blackwell); what torch sees of the memory: the "total capacity" in its own out-of-memory messages on
# such cards.
CARDS = {
    "rtx4060": Card("NVIDIA GeForce RTX 4060", int(7.75 * _GIB), 24, (8, 9), 272e9, 30.2e12, 14e9, 24 << 20),
    "rtx3060": Card("NVIDIA GeForce RTX 3060", int(11.76 * _GIB), 28, (8, 6), 360e9, 25.5e12, 25e9, 3 << 20),
    "rtx3090": Card("NVIDIA GeForce RTX 3090", int(23.69 * _GIB), 82, (8, 6), 936e9, 71e12, 25e9, 6 << 20),
    "t4": Card("Tesla T4", int(14.75 * _GIB), 40, (7, 5), 320e9, 65e12, 12e9, 4 << 20, 1024, 65_536),
    "rtx5060ti": Card(
        "NVIDIA GeForce RTX 5060 Ti", int(15.47 * _GIB), 36, (12, 0), 448e9, 47.4e12, 28e9, 32 << 20
    ),
    "h200": Card(
        "NVIDIA H200", int(139.8 * _GIB), 132, (9, 0), 4800e9, 989e12, 55e9, 50 << 20, 2048, 232_448
    ),
}


def sized(total_bytes: int, capability: tuple[int, int]) -> Card:
    """A card that is only known by its size: an RTX 4060's chip with so much memory."""
    return replace(CARDS["rtx4060"], name="Pretend card", total_bytes=total_bytes, capability=capability)
