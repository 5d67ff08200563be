"""What a machine has: cores, memory that may be used (container limits counted), graphics cards, disks, and
how fast they are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

from pipeline.system.graphics_cards import graphics_cards


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder on a disk and the bytes that are free there."""

    path: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a machine is. None: not known. ``origin`` says where the numbers come from: measured, given,
    or typical of its kind.

    ``matmul`` is in floating-point operations a second at the compute dtype, on the device that computes;
    ``memory`` in bytes a second of that device's memory. Pinned host memory is copied by the card itself;
    other memory goes through a buffer first.
    """

    origin: str = "unknown"
    memory_bytes_per_second: float | None = None
    matmul_per_second: float | None = None
    disk_read_bytes_per_second: float | None = None
    disk_write_bytes_per_second: float | None = None
    to_device_pinned_bytes_per_second: float | None = None
    to_device_bytes_per_second: float | None = None
    from_device_pinned_bytes_per_second: float | None = None
    from_device_bytes_per_second: float | None = None
    dequantize_weights_per_second: float | None = (
        None  # nf4 unpacked before the product; None where products take it as it is
    )
    # Of one model, calibrated by `bench` or `plan --measure`; they scale the formulas to what was measured at
    # these sizes.
    prefill_tokens_per_second: float | None = None
    prefill_at_tokens: int | None = None
    decode_tokens_per_second: float | None = None  # all rows together
    decode_at_rows: int | None = None
    decode_at_tokens: int | None = None
    load_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """Bytes that are free now. ``gpu_bytes`` has one entry a CUDA device, before anybody has a context there;
    of each, where the machine was asked, ``gpu_processors`` has its streaming multiprocessors and its compute
    capability: (24, 8, 9).
    """

    cores: int
    ram_bytes: int
    gpu_bytes: tuple[int, ...] = ()
    gpu_names: tuple[str, ...] = ()
    disks: tuple[Disk, ...] = ()
    rates: Rates = Rates()
    link: str = ""  # between host and card, e.g. "PCIe 4.0 x16"; empty where it is not known
    gpu_processors: tuple[tuple[int, int, int], ...] = ()

    @property
    def vram_bytes(self) -> int:
        """All graphics cards together, as ``device_map: auto`` fills them."""
        return sum(self.gpu_bytes)


def probe(folders: tuple[Path, ...] = (), *, with_cards: bool = True) -> Hardware:
    """Look at the machine, and at the disks that hold ``folders``; at graphics cards only ``with_cards``,
    which imports torch. Raises DeviceLost as ``graphics_cards``.
    """
    cards = graphics_cards() if with_cards else ()
    return Hardware(
        cores=usable_cores(),
        ram_bytes=available_ram_bytes(),
        gpu_bytes=tuple(card.room_bytes for card in cards),
        gpu_names=tuple(card.name for card in cards),
        gpu_processors=tuple((card.multiprocessors, *card.capability) for card in cards),
        disks=tuple(disk_of(folder) for folder in folders),
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def disk_of(folder: Path) -> Disk:
    """Free bytes where ``folder`` is, or would be made."""
    return Disk(str(folder), shutil.disk_usage(existing_folder(folder)).free)


def existing_folder(folder: Path) -> Path:
    """``folder``, or the nearest one above it that is there."""
    above = (folder.absolute(), *folder.absolute().parents)
    return next(place for place in above if os.path.isdir(place))  # noqa: PTH112  # a long name raises there


_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available_ram_bytes(root: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Free RAM of the machine, or what the memory cgroup (v2 or v1) leaves if that is less.

    Every group from the process's own up to the root counts, as any of them may hold the limit. Inside a
    container the group's path is often not visible; the group mounted at ``root`` is then the container's
    own.
    """
    return _free_bytes(("inactive_file",), root, own)


def reclaimable_ram_bytes(root: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """The same, with pages of files in use counted as free: what is left before somebody has to be killed,
    not before it gets slow.
    """
    return _free_bytes(("inactive_file", "active_file"), root, own)


def _free_bytes(page_cache: Collection[str], root: Path, own: Path) -> int:
    free = int(psutil.virtual_memory().available)
    for limit, usage in _cgroup_files(root, own):
        try:
            maximum, used = (
                int(limit.read_text()),
                int(usage.read_text()) - _reclaimable(limit.parent, page_cache),
            )
        except (OSError, ValueError):  # no such controller; "max" means unlimited
            continue
        free = min(free, max(0, maximum - used))
    return free


def _reclaimable(folder: Path, page_cache: Collection[str]) -> int:
    """Bytes of page cache that the kernel gives back before it lets anybody starve; v1 counts a group's
    children in ``total_``.
    """
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split()[:2] for line in lines if len(line.split()) >= 2)
    return sum(int(counts.get(f"total_{name}", counts.get(name, 0))) for name in page_cache)


def _cgroup_files(root: Path, own: Path) -> list[tuple[Path, Path]]:
    """Files of limit and use, from the process's group up to the root, for both versions of the
    controller.
    """
    pairs: list[tuple[Path, Path]] = []
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            pairs += [(folder / "memory.max", folder / "memory.current") for folder in _upwards(root, path)]
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            pairs += [(folder / names[0], folder / names[1]) for folder in _upwards(root / "memory", path)]
    return pairs


def _upwards(root: Path, path: str) -> list[Path]:
    folder = root / path.lstrip("/")
    return (
        [folder, *(parent for parent in folder.parents if parent == root or root in parent.parents)]
        if folder != root
        else [root]
    )
