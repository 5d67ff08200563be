"""Caches to put into a store: small seeded tensors whose numbers follow from the ids, so that a wrong hit
shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.stores.kv.entry import Entry, Loaded, Segment
from pipeline.stores.kv.store import KvStore

MODEL: Mapping[str, Any] = {
    "model": "m",
    "revision": "1",
    "quantization": "none",
    "dtype": "float32",
    "attention": "sdpa",
    "rope": {"theta": 1e4},
}
HEADS, WIDTH, LAYERS = 2, 8, 2
GB = 10**9


def numbers(
    ids: Sequence[int], salt: str, width: int = WIDTH, model: Mapping[str, Any] = MODEL
) -> torch.Tensor:
    """(HEADS, len(ids), width), each column a function of the ids up to it, as of a real model."""
    seed = int.from_bytes(
        hashlib.blake2b(f"{salt}{sorted(model.items())}".encode(), digest_size=4).digest(), "little"
    )
    places = torch.arange(1, len(ids) + 1) * 2654435761 + seed
    seen = torch.cumsum((torch.tensor(ids, dtype=torch.int64) + 1) * (places | 1), 0)  # wraps around
    columns = (seen[:, None] * (2 * torch.arange(HEADS * width) + 1) + seed) % 10007
    return (
        (columns.to(torch.float32) / 10007 - 0.5).reshape(len(ids), HEADS, width).transpose(0, 1).contiguous()
    )


def ranges(
    ids: Sequence[int], begin: int = 0, model: Mapping[str, Any] = MODEL, layers: int = LAYERS
) -> dict[str, torch.Tensor]:
    return {
        f"L{layer}.{role}": numbers(ids, f"{layer}{role}", model=model)[:, begin:]
        for layer in range(layers)
        for role in "kv"
    }


def states(ids: Sequence[int]) -> dict[str, torch.Tensor]:
    """What a recurrent layer and a sliding window of 16 keep as of the last of ``ids``."""
    return {
        "L9.recurrent": numbers(ids[-1:], "r" + ",".join(map(str, ids))).to(torch.float64),
        "L8.k": numbers(ids, "w")[:, -16:],
    }


def entry(
    ids: Sequence[int],
    kind: Any = "document",
    *,
    seconds: float = 1.0,
    model: Mapping[str, Any] = MODEL,
    **more: Any,
) -> Entry:
    return Entry(model, kind, list(ids), seconds, layer_kinds=("full",) * LAYERS, **more)


def put(
    store: Any,
    ids: Sequence[int],
    kind: Any = "document",
    *,
    begin: int = 0,
    with_states: bool = False,
    **more: Any,
) -> Any:
    model = more.get("model", MODEL)
    return store.put(
        entry(ids, kind, **more),
        Segment(begin, ranges(ids, begin, model), states(ids) if with_states else {}),
    )


def ids_of(seed: int, count: int) -> list[int]:
    return torch.randint(0, 50_000, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def opened(path: Path, **options: Any) -> KvStore:
    return KvStore(path, **{"quota_bytes": GB, "free_floor_bytes": 0, **options})


def equal(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return first.keys() == second.keys() and all(
        _content(first[name]) == _content(second[name]) for name in first
    )


def _content(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def is_right(loaded: Loaded, ids: Sequence[int], model: Mapping[str, Any] = MODEL) -> bool:
    """Whether what was loaded is what computing the beginning of ``ids`` gives."""
    beginning = list(ids[: loaded.tokens])
    wanted = states(beginning) if loaded.states else {}
    return (
        list(loaded.ids) == beginning
        and equal(loaded.ranges, ranges(beginning, model=model))
        and equal(loaded.states, wanted)
    )
