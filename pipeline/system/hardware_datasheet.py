"""How fast bytes travel: PCI Express by generation and lanes, disks by kind, and graphics cards by size.

PCI Express: transfers a second and lane times the line code's share (PCI-SIG base specifications 1.0 to 6.0).
Of that, packets of 128 to 256 bytes with 20 to 30 bytes of headers and acknowledgements leave about four
fifths in practice: 25 GB/s of 31.5 at 4.0 x16 is what pinned copies reach in public measurements. Memory that
is not pinned is copied twice and reaches about half of that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.errors import ConfigError

# Gigatransfers a second and lane, and the share of them that is data: 8b/10b, then 128b/130b, then flits of
# 256 bytes with 242 of data.
_GENERATIONS = {
    1: (2.5, 8 / 10),
    2: (5.0, 8 / 10),
    3: (8.0, 128 / 130),
    4: (16.0, 128 / 130),
    5: (32.0, 128 / 130),
    6: (64.0, 242 / 256),
}
_LANES = (1, 2, 4, 8, 16)
PRACTICAL_SHARE = 0.8
UNPINNED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Link:
    """A PCI Express connection, one way."""

    generation: int
    lanes: int

    @property
    def theoretical_bytes_per_second(self) -> float:
        """By the specification."""
        transfers, share = _GENERATIONS[self.generation]
        return transfers * 1e9 * share / 8 * self.lanes

    @property
    def pinned_bytes_per_second(self) -> float:
        """What copies of pinned memory reach."""
        return self.theoretical_bytes_per_second * PRACTICAL_SHARE

    @property
    def unpinned_bytes_per_second(self) -> float:
        """What copies of other memory reach."""
        return self.pinned_bytes_per_second * UNPINNED_SHARE

    def __str__(self) -> str:
        """``PCIe 4.0 x16``."""
        return f"PCIe {self.generation}.0 x{self.lanes}"


def parse_link(text: str) -> Link:
    """``4.0x16``, ``4x16``, ``PCIe 4.0 x16``, or ``4.0`` for 16 lanes. Raises ConfigError."""
    found = re.fullmatch(
        r"\s*(?:pcie?)?\s*(?:gen)?\s*(\d)(?:\.0)?\s*(?:[x×]\s*(\d+))?\s*", text, re.IGNORECASE
    )
    if found is None:
        raise ConfigError(
            f"{text!r} is not a PCI Express link; write for example 4.0x16: the generation, x, and the lanes"
        )
    generation, lanes = int(found[1]), int(found[2] or 16)
    if generation not in _GENERATIONS:
        raise ConfigError(
            f"there is no PCI Express {generation}.0 here; known are "
            f"{', '.join(f'{number}.0' for number in _GENERATIONS)}"
        )
    if lanes not in _LANES:
        raise ConfigError(
            f"PCI Express has {', '.join(map(str, _LANES[:-1]))} or {_LANES[-1]} lanes, not {lanes}"
        )
    return Link(generation, lanes)


@dataclass(frozen=True, slots=True)
class DiskKind:
    """Sequential rates of a kind of disk, one large file, cold."""

    name: str
    read_bytes_per_second: float
    write_bytes_per_second: float


# Data sheets of common consumer drives; SATA III itself ends at 600 MB/s.
NVME = DiskKind("NVMe", 3.5e9, 2.5e9)
SATA = DiskKind("SATA SSD", 0.55e9, 0.5e9)
HARD_DISK = DiskKind("hard disk", 0.2e9, 0.2e9)


@dataclass(frozen=True, slots=True)
class CardKind:
    """A typical card of a size: memory bandwidth, and dense matrix products at 16 bits with float32 sums."""

    memory_gib: int
    memory_bytes_per_second: float
    matmul_per_second: float


# NVIDIA data sheets: RTX 3060 Ti, RTX 3060, RTX 4060 Ti 16 GB, RTX 3090, RTX A6000, A100 80 GB.
CARDS = (
    CardKind(8, 448e9, 32e12),
    CardKind(12, 360e9, 25e12),
    CardKind(16, 288e9, 44e12),
    CardKind(24, 936e9, 71e12),
    CardKind(48, 768e9, 155e12),
    CardKind(80, 2039e9, 312e12),
)
# Of a desktop processor: two channels of DDR4-3200 give 51 GB/s; 32 float32 operations a core and cycle
# (AVX2) at about 3 GHz.
CPU_MEMORY_BYTES_PER_SECOND = 40e9
CPU_MATMUL_PER_CORE_AND_SECOND = 50e9


def typical_card(memory_bytes: int) -> CardKind:
    """The largest of the table that is no larger (a tenth is forgiven: 24 GB cards are sold with 24 GiB less
    the driver's share).
    """
    fitting = [card for card in CARDS if card.memory_gib * 2**30 * 0.9 <= memory_bytes]
    return fitting[-1] if fitting else CARDS[0]
