"""What this machine has: cores, memory that may be used (container limits counted), graphics cards."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Hardware:
    """Bytes that are free now. ``gpu_bytes`` has one entry a CUDA device."""

    cores: int
    ram_bytes: int
    gpu_bytes: tuple[int, ...] = ()


def probe() -> Hardware:
    """Look at the machine. Asks torch for graphics cards, so the first call imports it."""
    import torch

    gpus = tuple(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())) if torch.cuda.is_available() else ()
    return Hardware(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, available_ram_bytes(), gpus)


def available_ram_bytes() -> int:
    """Free RAM of the machine, or what the memory cgroup (v2 or v1) leaves if that is less."""
    return _free_bytes(("inactive_file",))


def reclaimable_ram_bytes() -> int:
    """The same, with pages of files in use counted as free: what is left before somebody has to be killed, not before it gets slow."""
    return _free_bytes(("inactive_file", "active_file"))


def _free_bytes(page_cache: Collection[str]) -> int:
    free = int(psutil.virtual_memory().available)
    for limit, usage in _cgroup_files():
        try:
            maximum, used = int(limit.read_text()), int(usage.read_text()) - _reclaimable(limit.parent, page_cache)
        except (OSError, ValueError):  # no such controller; "max" means unlimited
            continue
        free = min(free, max(0, maximum - used))
    return free


def _reclaimable(folder: Path, page_cache: Collection[str]) -> int:
    """Bytes of page cache that the kernel gives back before it lets anybody starve."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.split()[0] in page_cache)


def _cgroup_files() -> list[tuple[Path, Path]]:
    root = Path("/sys/fs/cgroup")
    pairs = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            folder = root / path.lstrip("/")
            pairs.append((folder / "memory.max", folder / "memory.current"))
        elif "memory" in controllers.split(","):
            folder = root / "memory" / path.lstrip("/")
            pairs.append((folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes"))
    return pairs
