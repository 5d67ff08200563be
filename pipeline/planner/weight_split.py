"""Which block of a model goes to which device, where one device does not hold all of them: graphics cards
share evenly, then RAM, then the disk. What is decided here is what the loader does, to the byte.

Embeddings, head and whatever is no layer come first: each is used at every step, and one of them is often
larger than a layer, so that fetching it would need more room than its place on the device does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pipeline.planner.budget import Need, Place, Room, Wish
from pipeline.planner.model.layers import Block
from pipeline.planner.model.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Split:
    """Device of each block by its path ("0", "1", ... of the cards used, "cpu", "disk"), and bytes by device.

    ``fetched_bytes``: of the largest block that is on no computing device, and comes for each of its uses.
    """

    devices: Mapping[str, str]
    bytes_by_device: Mapping[str, int]
    fetched_bytes: int = 0

    def by_place(self, computing: Collection[str]) -> dict[Place, int]:
        """Bytes on the ``computing`` devices together, in RAM beside them, and on the disk."""
        near = sum(bytes_ for device, bytes_ in self.bytes_by_device.items() if device in computing)
        ram = 0 if "cpu" in computing else self.bytes_by_device.get("cpu", 0)
        return {"device": near, "ram": ram, "disk": self.bytes_by_device.get("disk", 0)}


def near_split(shape: ModelShape, wish: Wish, need: Need, have: Room) -> Split | None:
    """All weights on the devices that compute; None where they cannot be shared out, though there is room for
    them in all. One device is not asked how large it is.
    """
    whole = sum(block.stored_bytes(wish.quantization, wish.dtype) for block in shape.blocks)
    rooms = dict.fromkeys(have.computing, whole)
    if have.devices > 1:
        row = need.row_bytes if need.together_bytes <= have.device_bytes else need.near_bytes
        rooms = _less(have.computing, (need.activation_bytes + row) // have.devices)
    return split_blocks(shape.blocks, wish.quantization, wish.dtype, rooms, {})


def far_split(shape: ModelShape, wish: Wish, need: Need, have: Room, cache: Place) -> Split | None:
    """As many weights on the devices that compute as leave room for a pass, one row whose cache is in
    ``cache``, and what is fetched; the others in RAM and on the disk. None where that does not hold.
    """
    row = int((need.row_bytes if cache == "device" else need.near_bytes) / have.cache_share)
    disk = have.disk_bytes - (need.far_bytes if cache == "disk" else 0)
    beside = {"disk": max(0, disk)}
    if have.on_card:
        ram = have.ram_bytes - (need.row_bytes if cache == "ram" else 0)
        beside = {"cpu": max(0, min(ram, have.ram_weights_bytes)), **beside}
        if ram < 0:
            return None
    fetched = need.fetched_bytes
    while disk >= 0:
        rooms = _less(have.computing, (need.activation_bytes + row) // have.devices + fetched)
        if min(rooms.values()) < 0:
            return None
        rooms = {device: min(room, have.device_weights_bytes) for device, room in rooms.items()}
        found = split_blocks(shape.blocks, wish.quantization, wish.dtype, rooms, beside)
        if found is None or found.fetched_bytes <= fetched:
            return found
        fetched = found.fetched_bytes
    return None


def room_beside(split: Split, shape: ModelShape, wish: Wish, need: Need, have: Room) -> int:
    """Bytes that caches of rows may take on all computing devices together: each holds those of its own
    layers, so that the fullest one is the limit.
    """
    layers = {
        block.path: block.stored_bytes(wish.quantization, wish.dtype) for block in shape.blocks if block.layer
    }
    whole, most = sum(layers.values()), have.device_bytes
    left = _less(have.computing, need.activation_bytes // have.devices)
    fetched = need.fetched_bytes if split.fetched_bytes else 0
    for device, bytes_ in left.items():
        room = bytes_ - split.bytes_by_device.get(device, 0) - fetched
        own = sum(size for path, size in layers.items() if split.devices[path] == device)
        most = min(most, room * whole // own if own and have.devices > 1 else room)
    return most


def _less(rooms: Mapping[str, int], bytes_: int) -> dict[str, int]:
    return {device: room - bytes_ for device, room in rooms.items()}


def split_blocks(
    blocks: Sequence[Block],
    quantization: str,
    dtype: str,
    computing: Mapping[str, int],
    beside: Mapping[str, int],
) -> Split | None:
    """Fill the ``computing`` devices in their order, then those ``beside`` them, each with at most its bytes;
    None where something is left.
    """
    ordered = [block for block in blocks if not block.layer] + [block for block in blocks if block.layer]
    sizes = {block.path: block.stored_bytes(quantization, dtype) for block in ordered if not block.follows}
    devices = None
    if sum(sizes.values()) <= sum(computing.values()):
        devices = _filled(sizes, computing, {})
    devices = devices or _filled(sizes, {}, {**computing, **beside})
    if devices is None:
        return None
    devices |= {block.path: devices[block.follows] for block in ordered if block.follows}
    totals = dict.fromkeys((*computing, *beside), 0)
    for path, size in sizes.items():
        totals[devices[path]] += size
    far = [size for path, size in sizes.items() if devices[path] not in computing]
    return Split(devices, {device: size for device, size in totals.items() if size}, max(far, default=0))


def _filled(
    sizes: Mapping[str, int], evenly: Mapping[str, int], in_turn: Mapping[str, int]
) -> dict[str, str] | None:
    """Blocks in their order to devices in theirs. Of those to be filled ``evenly``, each takes its share of
    what is left, to the nearest block.
    """
    rooms = dict(evenly) | dict(in_turn)
    found: dict[str, str] = {}
    waiting = list(sizes.items())
    for place, (device, room) in enumerate(rooms.items()):
        left = sum(size for _, size in waiting)
        share = left / (len(evenly) - place) if place < len(evenly) else room
        used = 0
        while waiting and used + waiting[0][1] <= room and used + waiting[0][1] / 2 <= share:
            path, size = waiting.pop(0)
            found[path], used = device, used + size
    return None if waiting else found
