"""What is loaded together, and where it lies between two uses: units, and the tiers they are kept in.

A unit is a layer or, where a whole layer in plain numbers is too much, one module of it; the head is one in
pieces of rows. Between uses it is on the device, in RAM, or on the disk only. Everything small, and what the
model has outside of its layers, always stays on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from pipeline.engine.streaming.meta_model import MetaModel
from pipeline.engine.streaming.weight_file import Block
from pipeline.errors import DoesNotFit
from pipeline.records import Grain, Streaming
from pipeline.system.units import amount

Tier = Literal["device", "ram", "disk"]
_GRAINS: tuple[Grain, ...] = ("layer", "module")
_SMALL_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Unit:
    """Blocks of one file, one behind another. ``module`` is the path of what they belong to; ``head`` marks
    rows of the head.
    """

    module: str
    blocks: tuple[Block, ...]
    plain_bytes: int
    head: bool = False

    @property
    def bytes(self) -> int:
        """Bytes as stored."""
        return sum(block.bytes for block in self.blocks)


@dataclass(frozen=True, slots=True)
class Tiers:
    """Units in the order of a sweep with their tiers; ``small`` are blocks that always stay. Sizes in bytes.

    ``working_bytes``: what is on the device beside what stays there: the unit in use, in plain numbers too,
    and the one on its way.
    """

    grain: Grain
    units: tuple[Unit, ...]
    tiers: tuple[Tier, ...]
    small: tuple[Block, ...]
    working_bytes: int

    def bytes_in(self, tier: Tier) -> int:
        """Stored bytes of the units in ``tier``; those that always stay count for the device."""
        held = sum(unit.bytes for unit, place in zip(self.units, self.tiers, strict=True) if place == tier)
        return held + (sum(block.bytes for block in self.small) if tier == "device" else 0)

    @property
    def sweep_bytes(self) -> int:
        """What one sweep reads from the disk."""
        return self.bytes_in("disk")

    def describe(self, device: str) -> str:
        """``0.6 GiB of weights: 0.2 GiB on cpu, 0.4 GiB from disk for each sweep``."""
        places = [(f"on {device}", "device"), ("in RAM", "ram"), ("from disk for each sweep", "disk")]
        parts = [f"{amount(self.bytes_in(tier))} {where}" for where, tier in places if self.bytes_in(tier)]  # type: ignore[arg-type]
        total = sum(self.bytes_in(tier) for tier in ("device", "ram", "disk"))
        return f"{amount(total)} of weights: {', '.join(parts)}; {amount(self.working_bytes)} at work"


def plan_tiers(
    meta_model: MetaModel,
    files: Mapping[str, Sequence[Block]],
    name: str,
    device_bytes: int,
    ram_bytes: int = 0,
    planned: Streaming | None = None,
) -> Tiers:
    """Layers as units where they fit into ``device_bytes``, else modules; as many as possible stay, in RAM
    the next ones, the rest on disk.

    ``ram_bytes`` is for a device with memory of its own. ``planned`` bounds both. Raises DoesNotFit.
    """
    needed = 0
    for unit_grain in _GRAINS[1:] if planned and planned.grain == "module" else _GRAINS:
        units, small = _units(meta_model, files, unit_grain)
        always = sum(block.bytes for block in small)
        largest = max(unit.bytes for unit in units)
        plain = max(unit.plain_bytes for unit in units)
        total = sum(unit.bytes for unit in units)
        if always + total + plain <= device_bytes and (planned is None or total <= planned.resident_bytes):
            return Tiers(unit_grain, tuple(units), ("device",) * len(units), tuple(small), plain)  # type: ignore[arg-type]
        needed = always + 2 * largest + plain
        if needed <= device_bytes:
            room = (device_bytes - needed, ram_bytes)
            if planned is not None:
                room = (min(room[0], planned.resident_bytes), min(room[1], planned.ram_bytes))
            return Tiers(unit_grain, tuple(units), _placed(units, *room), tuple(small), 2 * largest + plain)
    raise DoesNotFit(
        f"streaming {name} needs {amount(needed)} for the largest of its matrices, the next one on its way "
        f"and what lies outside of "
        f"its layers, and model.max_memory or what is free allows {amount(device_bytes)}; raise it, or use "
        f"a smaller model"
    )


def _placed(units: Sequence[Unit], device_room: int, ram_room: int) -> tuple[Tier, ...]:
    """Every n-th unit stays, so that reads are spread evenly between the computing of those that are
    there.
    """
    tiers: list[Tier] = ["disk"] * len(units)
    rooms: list[tuple[Tier, int]] = [("device", device_room), ("ram", ram_room)]
    for tier, room in rooms:
        for index in _spread(len(units)):
            if tiers[index] == "disk" and units[index].bytes <= room:
                tiers[index] = tier
                room -= units[index].bytes  # noqa: PLW2901  # what is left of it
    return tuple(tiers)


def _spread(count: int) -> list[int]:
    """Indices so that every beginning of the list is spread over the range: those of the coarsest grid
    first.
    """
    order, step = [], 1 << max(0, count - 1).bit_length()
    seen: set[int] = set()
    while step >= 1:
        for index in range(0, count, step):
            if index not in seen:
                seen.add(index)
                order.append(index)
        step //= 2
    return order


def _units(
    meta_model: MetaModel, files: Mapping[str, Sequence[Block]], grain: Grain
) -> tuple[list[Unit], list[Block]]:
    """Units in the order of the model, the head's last, and the blocks that are too small or too special to
    be units.
    """
    units: list[Unit] = []
    small: list[Block] = []
    prefix = meta_model.layers_path
    for group, blocks in sorted(files.items()):
        if not group.startswith("layer-"):
            if not blocks[0].file.startswith("rows-"):
                small += blocks
            continue
        path = f"{prefix}.{int(group.removeprefix('layer-'))}"
        for module, members in (
            {path: list(blocks)} if grain == "layer" else _by_module(meta_model.model, blocks)
        ).items():
            quantized = any(block.name.endswith((".absmax", ".SCB")) for block in members)
            if grain == "module" and not quantized and sum(block.bytes for block in members) < _SMALL_BYTES:
                small += members
            else:
                units.append(Unit(module, tuple(members), _plain_bytes(meta_model.model, members)))
    return [*units, *_head_units(meta_model, files)], small


def head_blocks(meta_model: MetaModel, files: Mapping[str, Sequence[Block]]) -> tuple[str, Sequence[Block]]:
    """Path of the head, and the pieces of its matrix, which may be the embedding's too; none where it is not
    stored by rows.
    """
    model = meta_model.model
    head = model.get_output_embeddings()
    path = next((path for path, module in model.named_modules() if module is head), "")
    name = f"{path}.weight"
    blocks = files.get(model.all_tied_weights_keys.get(name, name), ())
    return path, (blocks if blocks and blocks[0].file.startswith("rows-") else ())


def _head_units(meta_model: MetaModel, files: Mapping[str, Sequence[Block]]) -> list[Unit]:
    path, blocks = head_blocks(meta_model, files)
    return [Unit(path, (block,), 0, head=True) for block in blocks]


def _by_module(model: Any, blocks: Sequence[Block]) -> dict[str, list[Block]]:
    """Blocks by the module that owns their tensor; statistics go with their weight."""
    modules = {path for path, _ in model.named_modules()}
    found: dict[str, list[Block]] = {}
    for block in blocks:
        parts = block.name.split(".")
        owner = next(
            path for end in range(len(parts) - 1, -1, -1) if (path := ".".join(parts[:end])) in modules
        )
        found.setdefault(owner, []).append(block)
    return found


def _plain_bytes(model: Any, blocks: Sequence[Block]) -> int:
    """Bytes of the weights in 4 bits among ``blocks`` once they are plain numbers."""
    names = {block.name.removesuffix(".absmax") for block in blocks if block.name.endswith(".absmax")}
    total = 0
    for name in names:
        path, _, last = name.rpartition(".")
        tensor: torch.Tensor = getattr(model.get_submodule(path), last)
        total += tensor.numel() * tensor.element_size()
    return total
