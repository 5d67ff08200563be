"""An entry's files to tensors, every byte checked."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from pipeline.stores.kv import formats, prefix_hash, tensor_file
from pipeline.stores.kv.entry import Loaded
from pipeline.stores.kv.files import Files
from pipeline.stores.kv.manifest import DamagedEntry, File, Manifest
from pipeline.stores.kv.tensor_file import IDS, Opened


def read_entry(
    files: Files,
    about: Manifest,
    opened: Sequence[tuple[File, int]],
    wanted: bytes | None,
    at_least_tokens: int,
) -> Loaded:
    """Tensors of as many of the ``wanted`` ids (packed; None: all) as the entry has. Raises Damaged, OSError.

    Damaged also when the ids agree for less than ``at_least_tokens``: the digests in the manifest are then
    not those of its ids.
    """
    started = time.perf_counter()
    checked = [
        (file, tensor_file.open_checked(files, descriptor, file.header_bytes, file.checksum))
        for file, descriptor in opened
    ]
    segments = [(file, one) for file, one in checked if file in about.segments]
    ids = b"".join(bytes(_part(one, IDS)) for _, one in segments)
    tokens = _usable_tokens(about, ids, wanted, at_least_tokens)
    used = [(file, one) for file, one in segments if file.begin < tokens]
    states = [(file, one) for file, one in checked if file == about.state]
    return Loaded(
        tokens=tokens,
        ids=prefix_hash.unpack(ids[: tokens * prefix_hash.ID_BYTES]),
        ranges=_joined([_tensors(one) for _, one in used], tokens),
        states=_tensors(states[0][1]) if states else {},
        layer_kinds=about.layer_kinds,
        extra=about.extra,
        bytes_read=sum(file.size_bytes for file, _ in (*used, *states)),
        seconds=time.perf_counter() - started,
    )


def _usable_tokens(about: Manifest, ids: bytes, wanted: bytes | None, at_least_tokens: int) -> int:
    common = (
        prefix_hash.common_tokens(ids, wanted) if wanted is not None else len(ids) // prefix_hash.ID_BYTES
    )
    if common < at_least_tokens:
        raise DamagedEntry(f"its ids agree for {common} tokens instead of {at_least_tokens}")
    if about.state is None:
        return common
    if common < about.tokens:
        raise DamagedEntry("its states are of other ids")
    return about.tokens


def _part(opened: Opened, name: str) -> memoryview:
    part, _ = opened.places[name]
    data = memoryview(bytearray(part.size_bytes))
    opened.read(name, data)
    return data


def _tensors(opened: Opened) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, shape, dtype, encoding in opened.layout.about["tensors"]:
        coded = formats.Coded(name, tuple(shape), dtype, encoding)
        parts = []
        for part in coded.parts():
            parts.append(formats.empty(part))
            opened.read(part.name, formats.as_bytes(parts[-1]))
        tensors[name] = formats.decode(parts, coded)
    return tensors


def _joined(pieces: Sequence[dict[str, torch.Tensor]], tokens: int) -> dict[str, torch.Tensor]:
    """The pieces of each range in a row, cut to ``tokens``; pieces are let go as they are used."""
    if any(piece.keys() != pieces[0].keys() for piece in pieces):
        raise DamagedEntry("its segments hold different tensors")
    joined = {}
    for name in list(pieces[0]):
        parts = [piece.pop(name) for piece in pieces]
        whole = torch.cat(parts, dim=-2) if len(parts) > 1 else parts[0]
        joined[name] = whole if whole.shape[-2] == tokens else whole[..., :tokens, :].clone()
    return joined
