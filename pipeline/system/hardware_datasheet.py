"""How fast bytes travel: PCI Express by generation and lanes, disks by kind, and graphics cards by size.

PCI Express: transfers a second and lane times the line code's share (PCI-SIG base specifications 1.0 to 6.0).
Of that, packets of 128 to 256 bytes with 20 to 30 bytes of headers and acknowledgements leave about four
fifths in practice: 25 GB/s of 31.5 at 4.0 x16 is what pinned copies reach in public measurements. Memory that
is not pinned is copied twice and reaches about half of that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pipeline.errors import ConfigError
from pipeline.system.hardware import Hardware

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
    """A graphics card by its data sheet: memory bandwidth, dense matrix products at 16 bits with float32
    sums, streaming multiprocessors and compute capability.
    """

    name: str
    memory_gib: int
    memory_bytes_per_second: float
    matmul_per_second: float
    multiprocessors: int
    capability: tuple[int, int]

    def describe(self) -> str:
        """``24 multiprocessors of capability 8.9``."""
        major, minor = self.capability
        return f"{self.multiprocessors} multiprocessors of capability {major}.{minor}"


# NVIDIA's data sheets and white papers of Turing, Ampere, Ada, Hopper and Blackwell. First the typical one of
# a size, for cards of which nothing else is known.
CARDS = (
    CardKind("RTX 3060 Ti", 8, 448e9, 32e12, 38, (8, 6)),
    CardKind("RTX 3060", 12, 360e9, 25e12, 28, (8, 6)),
    CardKind("RTX 4060 Ti", 16, 288e9, 44e12, 34, (8, 9)),
    CardKind("RTX 3090", 24, 936e9, 71e12, 82, (8, 6)),
    CardKind("RTX A6000", 48, 768e9, 155e12, 84, (8, 6)),
    CardKind("A100", 80, 2039e9, 312e12, 108, (8, 0)),
)
_OTHERS = (
    CardKind("RTX 4060", 8, 272e9, 30e12, 24, (8, 9)),
    CardKind("RTX 3080", 10, 760e9, 59e12, 68, (8, 6)),
    CardKind("RTX 4070", 12, 504e9, 58e12, 46, (8, 9)),
    CardKind("T4", 16, 320e9, 65e12, 40, (7, 5)),
    CardKind("RTX 5060 Ti", 16, 448e9, 47e12, 36, (12, 0)),
    CardKind("RTX 4080", 16, 717e9, 97e12, 76, (8, 9)),
    CardKind("RTX 4090", 24, 1008e9, 165e12, 128, (8, 9)),
    CardKind("A10", 24, 600e9, 125e12, 72, (8, 6)),
    CardKind("L4", 24, 300e9, 121e12, 58, (8, 9)),
    CardKind("RTX 5090", 32, 1792e9, 209e12, 170, (12, 0)),
    CardKind("L40S", 48, 864e9, 362e12, 142, (8, 9)),
    CardKind("H100", 80, 3350e9, 989e12, 132, (9, 0)),
    CardKind("H200", 141, 4800e9, 989e12, 132, (9, 0)),
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


def named_card(name: str) -> CardKind | None:
    """The card called so, however it is written (``rtx4060``, ``NVIDIA GeForce RTX 4060``, ``Tesla T4``);
    None where it is not in the table, as a part of one (MIG) is not.
    """
    words = _words(name)
    if " mig " in f" {words} ":
        return None
    found = [card for card in (*CARDS, *_OTHERS) if f" {_words(card.name)} " in f" {words} "]
    # a model that is not in the table, such as a 4070 Ti, is not the one whose name it begins with
    found = [card for card in found if not _further(words, _words(card.name))]
    return max(found, key=lambda card: len(card.name), default=None)


def card_kind(name: str, memory_bytes: int) -> CardKind:
    """By name where the table has it, else the typical one of that size."""
    return named_card(name) or typical_card(memory_bytes)


def card_of(hardware: Hardware, number: int) -> CardKind:
    """Card ``number`` of a machine: by its name or its size, with the processors that it was asked for."""
    name = hardware.gpu_names[number] if number < len(hardware.gpu_names) else ""
    kind = card_kind(name, hardware.gpu_bytes[number])
    if number >= len(hardware.gpu_processors):
        return kind
    multiprocessors, major, minor = hardware.gpu_processors[number]
    return replace(kind, multiprocessors=multiprocessors, capability=(major, minor))


def _words(name: str) -> str:
    """Small letters, a space between letters and numbers where a series name ends: ``rtx4060ti`` is ``rtx
    4060 ti``; A100, L4 and T4 are one word.
    """
    text = re.sub(r"[^a-z0-9]+", " ", name.lower())
    text = re.sub(r"\b(rtx)\s*(?=[a-z]?\d)", r"\1 ", text)
    return re.sub(r"(?<=\d{4})\s*(ti|super)\b", r" \1", text).strip()


def _further(words: str, known: str) -> bool:
    """Whether ``words`` go on behind ``known`` to another model's name."""
    behind = f" {words} ".partition(f" {known} ")[2].split()
    return bool(behind) and behind[0] in ("ti", "super", "laptop", "mobile")
