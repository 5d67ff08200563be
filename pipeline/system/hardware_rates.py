"""How fast this machine is, measured once in a few seconds and kept in the user's cache folder until the
machine changes.

The measured numbers are what large sequential work reaches: a copy of memory too large for the processor's
caches, one large matrix product, one file written through to the disk and read back cold. The paths that need
a graphics card are untested so far.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from pipeline.errors import StoppedEarly
from pipeline.system.atomic_write import replace_file
from pipeline.system.hardware import Hardware, Rates, existing_folder, usable_cores
from pipeline.system.machine_load import OthersLoad

MEASURED_HERE = "measured here"

_FORMAT = 2
_LOOK_SECONDS = 0.3
_COPY_BYTES = 128 * 2**20
_FILE_BYTES = 64 * 2**20
_MATMUL_SIDE = 1024
_REPEATS = 3


def measured_rates(
    cache_folder: Path,
    scratch_folder: Path,
    dtype: str = "float32",
    cards: Sequence[str] = (),
    *,
    unpacking: Callable[[str], float | None],
    again: bool = False,
) -> Rates:
    """Rates of this machine, from ``cache_folder``/hardware.json if they were measured on it before, else
    measured now; those that were measured beside other programs are measured again once there are none.

    ``scratch_folder`` is where the disk is tried (64 MiB, removed again). Never raises for a disk that is
    full or read-only: that rate is then None. ``cards``: names of the graphics cards that compute, of which
    the first is measured; none: the processor. ``unpacking`` measures the numbers a second that 4-bit weights
    give a processor in a dtype, which only the engine knows; a card multiplies them as they are.
    """
    key, path = machine_key(scratch_folder, dtype, cards), cache_folder / "hardware.json"
    kept = _read(path)
    known = _rates(kept[key]) if key in kept and not again else None
    if known is not None and (known.origin == MEASURED_HERE or _is_busy()):
        return known
    others = OthersLoad()
    found = _measure(scratch_folder, dtype, on_card=bool(cards))
    found = replace(found, origin=f"{found.origin} {others.words}".rstrip())
    if not cards:
        found = replace(found, dequantize_weights_per_second=unpacking(dtype))
    kept[key] = asdict(found)
    with contextlib.suppress(OSError, StoppedEarly):  # a cache that cannot be written costs the seconds again
        cache_folder.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as stream:
            stream.write(json.dumps({"format": _FORMAT, "machines": kept}, indent=1).encode())
    return found


def known_rates(
    cache_folder: Path, scratch_folder: Path, dtype: str = "float32", cards: Sequence[str] = ()
) -> Rates | None:
    """What ``measured_rates`` has kept for this machine; None where it has not measured it yet."""
    return _rates(_read(cache_folder / "hardware.json").get(machine_key(scratch_folder, dtype, cards)))


def machine_key(scratch_folder: Path | None, dtype: str, cards: Sequence[str] = ()) -> str:
    """Digest of what the rates depend on: processor, usable cores, memory, the cards that compute, torch, the
    dtype, and the disk if one is named.
    """
    import psutil
    import torch

    facts = [
        platform.machine(),
        _processor(),
        usable_cores(),
        psutil.virtual_memory().total >> 28,
        list(cards),
        torch.__version__,
        dtype,
    ]
    if scratch_folder is not None:
        facts.append(existing_folder(scratch_folder).stat().st_dev)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _is_busy() -> bool:
    """Whether other programs keep the machine busy now, so that measuring again would tell nothing better."""
    others = OthersLoad()
    time.sleep(_LOOK_SECONDS)
    return others.busy_cores > 0


def with_rates(hardware: Hardware, rates: Rates) -> Hardware:
    """The same machine, its speeds known."""
    return replace(hardware, rates=rates)


def _measure(scratch_folder: Path, dtype: str, *, on_card: bool) -> Rates:
    import torch

    device = torch.device("cuda", 0) if on_card else torch.device("cpu")
    read, write = _disk(scratch_folder)
    links: dict[str, Any] = _links(device) if device.type == "cuda" else {}
    return Rates(
        origin=MEASURED_HERE,
        memory_bytes_per_second=_memory(device),
        matmul_per_second=_matmul(device, dtype),
        disk_read_bytes_per_second=read,
        disk_write_bytes_per_second=write,
        **links,
    )


def _best_seconds(work: Callable[[], object], settle: Callable[[], object] = lambda: None) -> float:
    """The shortest of a few runs: others on the machine only ever make it slower."""
    work()  # pages are touched, kernels chosen
    settle()
    best = float("inf")
    for _ in range(_REPEATS):
        started = time.perf_counter()
        work()
        settle()
        best = min(best, time.perf_counter() - started)
    return best


def _settle(device: Any) -> Callable[[], object]:
    import torch

    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def _memory(device: Any) -> float:
    """Bytes read a second by a sum over memory, as a product of a matrix and one vector reads its weights."""
    import torch

    numbers = torch.ones(_COPY_BYTES // 4, device=device)
    return _COPY_BYTES / _best_seconds(numbers.sum, _settle(device))


def _matmul(device: Any, dtype: str) -> float:
    """Operations a second of a square product: 2 n^3."""
    import torch

    side = _MATMUL_SIDE * (8 if device.type == "cuda" else 1)
    left = torch.randn(side, side, device=device).to(getattr(torch, dtype))
    return 2 * side**3 / _best_seconds(lambda: left @ left, _settle(device))


def _links(device: Any) -> dict[str, float]:
    """Both directions between host and card, of pinned and of other memory."""
    import torch

    found = {}
    for pinned in (True, False):
        host = torch.ones(_COPY_BYTES // 4, pin_memory=pinned)
        near = host.to(device)
        name = "_pinned_bytes_per_second" if pinned else "_bytes_per_second"
        for direction, target, source in (("to_device", near, host), ("from_device", host, near)):
            seconds = _best_seconds(lambda t=target, s=source: t.copy_(s, non_blocking=True), _settle(device))  # type: ignore[misc]
            found[direction + name] = _COPY_BYTES / seconds
    return found


def _disk(folder: Path) -> tuple[float | None, float | None]:
    """(read, write) of one file, written through and read past the page cache where the system lets it be
    dropped.
    """
    content = os.urandom(2**20) * (_FILE_BYTES // 2**20)
    path = folder / f".overnight-speed-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        with path.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        written = time.perf_counter() - started
        return _FILE_BYTES / _cold_read_seconds(path), _FILE_BYTES / written
    except OSError:
        return None, None
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _cold_read_seconds(path: Path) -> float:
    with path.open("rb", buffering=0) as stream:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        while stream.read(4 * 2**20):
            pass
        return time.perf_counter() - started


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _read(path: Path) -> dict[str, Any]:
    """What was kept, by machine; nothing where the file is absent, damaged or of another format."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if (
        not isinstance(kept, dict)
        or kept.get("format") != _FORMAT
        or not isinstance(kept.get("machines"), dict)
    ):
        return {}
    return dict(kept["machines"])


def _rates(raw: Any) -> Rates | None:
    """Rates as kept; None where the entry is not one."""
    names = {field.name for field in fields(Rates)}
    if not isinstance(raw, dict) or set(raw) != names:
        return None
    numbers = [value for name, value in raw.items() if name != "origin" and value is not None]
    if any(not isinstance(value, int | float) or value <= 0 for value in numbers):
        return None
    return Rates(**raw)
