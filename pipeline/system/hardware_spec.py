"""A machine that is not this one: described on the command line, or in a file of YAML or JSON.

gpus: [24GiB]            # or a list of {memory: 24GiB, name: "...", count: 2}
ram: 64GiB
cores: 16
pcie: 4.0x16
disks: [{path: /data, free: 500GB, kind: nvme}]
rates: {matmul_per_second: 7.1e13}    # whatever is known better than what is typical
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.system.hardware import Disk, Hardware, Rates
from pipeline.system.hardware_datasheet import (
    CPU_MATMUL_PER_CORE_AND_SECOND,
    CPU_MEMORY_BYTES_PER_SECOND,
    HARD_DISK,
    NVME,
    SATA,
    DiskKind,
    Link,
    card_kind,
    named_card,
    parse_link,
)
from pipeline.system.units import parse_bytes
from pipeline.system.yaml_text import read_yaml_file

_DISKS = {"nvme": NVME, "sata": SATA, "hdd": HARD_DISK}
_KEYS = ("gpus", "ram", "cores", "pcie", "disks", "rates")
_DEFAULT_CORES = 8


def described(
    vram: str | Sequence[str] | None = None,
    ram: str | None = None,
    pcie: str | None = None,
    cores: int | None = None,
    disk: str = "nvme",
) -> Hardware:
    """A machine from the words of the command line; ``vram`` may be one size, several, ``2x24GiB``, or the
    name of a card (``rtx4060``). Raises ConfigError.

    ``disk``: its kind, and after a colon what is free on it; without that nothing is. Speeds are typical ones
    of such a machine (planner/links.py).
    """
    listed = [vram] if isinstance(vram, str) else list(vram or ())
    named = [card for text in listed for card in _cards(text)]
    cards = tuple(size for size, _ in named)
    link = parse_link(pcie) if pcie else Link(4, 16) if cards else None
    kind, _, free = disk.partition(":")
    if kind not in _DISKS:
        raise ConfigError(
            f"{kind!r} is not a kind of disk; known are {', '.join(_DISKS)}, with what is free on it: "
            f"nvme:500GB"
        )
    disks = (Disk("/", _size("--disk", free)),) if free else ()
    memory = _size("--ram", ram) if ram is not None else 16 * 2**30
    count = _DEFAULT_CORES if cores is None else cores
    if count < 1:
        raise ConfigError(f"--cores is {count}; a machine has at least one")
    names = tuple(name for _, name in named)
    rates = typical_rates(cards, count, link, _DISKS[kind], names)
    return Hardware(count, memory, cards, names, disks=disks, rates=rates, link=str(link) if link else "")


def read_hardware(path: Path) -> Hardware:
    """A machine from a file. Raises ConfigError that names the key."""
    raw = read_yaml_file(path, "hardware file").value  # JSON is YAML
    if not isinstance(raw, dict):
        raise ConfigError(
            f"{path} describes no machine: its top level must be keys such as gpus, ram and cores"
        )
    unknown = sorted(set(raw) - set(_KEYS))
    if unknown:
        raise ConfigError(f"{path}: unknown key {', '.join(map(str, unknown))}; known are {', '.join(_KEYS)}")
    return _from_keys(raw, str(path))


def _from_keys(raw: Mapping[str, Any], origin: str) -> Hardware:
    entries = _listed(raw, "gpus", origin)
    sizes, names = [], []
    for entry in entries:
        card = entry if isinstance(entry, dict) else {"memory": entry}
        for _ in range(int(card.get("count", 1))):
            sizes.append(_size(f"{origin}: gpus", card.get("memory")))
            names.append(str(card.get("name", "")))
    disks, kind = _disks(raw, origin)
    cores = raw.get("cores", _DEFAULT_CORES)
    if not isinstance(cores, int) or cores < 1:
        raise ConfigError(f"{origin}: cores is {cores!r}; write a whole number of at least one")
    if raw.get("ram") is None:
        raise ConfigError(f"{origin}: ram is missing; write for example ram: 64GiB")
    link = parse_link(str(raw["pcie"])) if raw.get("pcie") else Link(4, 16) if sizes else None
    typical = typical_rates(tuple(sizes), cores, link, kind, names)
    rates = _given(typical, raw.get("rates") or {}, origin)
    return Hardware(
        cores,
        _size(f"{origin}: ram", raw["ram"]),
        tuple(sizes),
        tuple(names),
        disks,
        rates,
        str(link) if link else "",
    )


def typical_rates(
    cards: Sequence[int], cores: int, link: Link | None, disk: DiskKind, names: Sequence[str] = ()
) -> Rates:
    """Speeds of such a machine, from data sheets. Several cards take turns (layers are spread over them), so
    they are as fast as the smallest. ``names``: of the cards, as far as they are known.
    """
    called = names or [""] * len(cards)
    kinds = [card_kind(name, size) for size, name in zip(cards, called, strict=True)]
    card = min(kinds, key=lambda kind: kind.memory_gib, default=None)
    pinned, unpinned = (
        (link.pinned_bytes_per_second, link.unpinned_bytes_per_second) if link else (None, None)
    )
    return Rates(
        origin="typical of such a machine",
        memory_bytes_per_second=card.memory_bytes_per_second if card else CPU_MEMORY_BYTES_PER_SECOND,
        matmul_per_second=card.matmul_per_second if card else cores * CPU_MATMUL_PER_CORE_AND_SECOND,
        disk_read_bytes_per_second=disk.read_bytes_per_second,
        disk_write_bytes_per_second=disk.write_bytes_per_second,
        to_device_pinned_bytes_per_second=pinned,
        to_device_bytes_per_second=unpinned,
        from_device_pinned_bytes_per_second=pinned,
        from_device_bytes_per_second=unpinned,
    )


def _given(rates: Rates, raw: Any, origin: str) -> Rates:
    known = {field.name for field in fields(Rates)} - {"origin"}
    if not isinstance(raw, dict) or set(raw) - known:
        unknown = ", ".join(sorted(map(str, set(raw) - known))) if isinstance(raw, dict) else repr(raw)
        raise ConfigError(f"{origin}: unknown rates {unknown}; known are {', '.join(sorted(known))}")
    try:
        numbers: dict[str, Any] = {name: float(value) for name, value in raw.items()}
    except (TypeError, ValueError):
        raise ConfigError(
            f"{origin}: rates are numbers a second, for example matmul_per_second: 7.1e13"
        ) from None
    if any(not value > 0 for value in numbers.values()):
        raise ConfigError(f"{origin}: rates must be larger than nought")
    return replace(rates, origin="given" if numbers else rates.origin, **numbers)


def _cards(text: str) -> list[tuple[int, str]]:
    """(bytes, name) of each of ``24GiB``, ``2x24GiB``, ``24GiB,8GiB`` or ``rtx4060``; of a size the name is
    empty.
    """
    found: list[tuple[int, str]] = []
    for part in text.split(","):
        count, times, size = part.strip().partition("x")
        repeated = times and count.strip().isdigit()
        said = size if repeated else part
        kind = named_card(said)
        card = (kind.memory_gib * 2**30, kind.name) if kind else (_size("--vram", said), "")
        found += [card] * (int(count) if repeated else 1)
    return found


def _disks(raw: Mapping[str, Any], origin: str) -> tuple[tuple[Disk, ...], DiskKind]:
    found: list[Disk] = []
    kind = NVME
    for entry in _listed(raw, "disks", origin):
        if not isinstance(entry, dict) or "free" not in entry:
            raise ConfigError(
                f"{origin}: a disk is written as {{path: /data, free: 500GB, kind: nvme}}, not {entry!r}"
            )
        name = str(entry.get("kind", "nvme")).lower()
        if name not in _DISKS:
            raise ConfigError(f"{origin}: {name!r} is not a kind of disk; known are {', '.join(_DISKS)}")
        kind = _DISKS[name] if not found else kind
        found.append(Disk(str(entry.get("path", "/")), _size(f"{origin}: disks", entry["free"])))
    return tuple(found), kind


def _listed(raw: Mapping[str, Any], key: str, origin: str) -> list[Any]:
    value = raw.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(
            f"{origin}: {key} must be a list, for example {key}: [{'24GiB' if key == 'gpus' else '...'}]"
        )
    return value


def _size(name: str, value: Any) -> int:
    try:
        amount = parse_bytes(value)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    if amount < 2**20:
        raise ConfigError(f"{name}: {value!r} is less than a MiB; write a unit, for example 24GiB")
    return amount
