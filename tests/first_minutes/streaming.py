"""Weights that are fetched while others compute: a few layers of a 70B shape in 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipeline.config import parse_config
from pipeline.engine.model.identity import weights_identity
from pipeline.engine.model.location import locate
from pipeline.engine.streaming.load import StreamedModel, open_streamed
from tests.first_minutes.models import LLAMA_70B, drained, engine_on, plan_for, requests_of, saved, shape
from tests.first_minutes.results import TINY, activities, attempt


def streamed() -> None:
    """From RAM and from the disk, at one row and at many."""
    sizes = shape(LLAMA_70B, 6)
    folder = saved("llama-70b-6", sizes)
    gigabyte = 40 * 2**10 if TINY else 2**30
    for tier, ram in (("ram", 40 * gigabyte), ("disk", 0)):
        memory = {0: 5 * gigabyte, "cpu": ram}
        attempt("streamed", lambda memory=memory: _tier(folder, sizes, memory), tier=tier)


def _tier(folder: Path, sizes: dict[str, Any], memory: dict[int | str, int]) -> dict[str, Any]:
    loaded = _opened(folder, memory)
    try:
        tiers = loaded.hooks.weights.tiers
        rows = (1, 4) if TINY else (1, 64)
        return {
            "tiers": tiers.describe("cuda"),
            "working_bytes": tiers.working_bytes,
            **{f"{count} rows": _sweeps(loaded, sizes, count) for count in rows},
        }
    finally:
        loaded.hooks.weights.close()


def _opened(folder: Path, memory: dict[int | str, int]) -> StreamedModel:
    config = parse_config(
        {
            "model": {"id": str(folder), "quantization": "nf4", "dtype": "bfloat16", "max_memory": memory},
            "source": {"path": "none"},
            "tasks": [{"name": "none", "kind": "summarize"}],
            "run": {"directory": "none"},
        }
    )
    location = locate(config.model)
    identity = weights_identity(config.model, location)
    return open_streamed(config, location, "bfloat16", identity, print, "to be measured")


def _sweeps(loaded: StreamedModel, sizes: dict[str, Any], rows: int) -> dict[str, Any]:
    """Milliseconds and bytes of a sweep, and how many large copies ran beside kernels."""
    engine, told = engine_on(loaded, plan_for(rows, "nf4", sizes, room=256), static=True)
    weights, vocabulary = loaded.hooks.weights, loaded.model.config.vocab_size
    drained(engine, requests_of(rows, 16, 2, vocabulary))
    torch.cuda.reset_peak_memory_stats()
    before, swept = torch.cuda.memory_allocated(), weights.sweeps
    took = drained(engine, requests_of(rows, 16, 9, vocabulary))
    sweeps = weights.sweeps - swept
    moved = weights.tiers.bytes_in("ram") + weights.tiers.bytes_in("disk")
    peak = torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=activities()) as profile:
        drained(engine, requests_of(rows, 16, 3, vocabulary))
    return {
        "engine": told,
        "sweep_ms": 1000 * took / sweeps,
        "fetched_per_second": moved * sweeps / took,
        "peak_beside": peak,
        "reserved": torch.cuda.max_memory_reserved(),
        **_overlap(profile.events()),
    }


def _overlap(events: Any) -> dict[str, int]:
    copies = [each for each in events if "HtoD" in each.name and each.time_range.elapsed_us() > 50][:200]
    kernels = [each.time_range for each in events if "HtoD" not in each.name][:4000]
    beside = sum(
        any(k.start < c.time_range.end and c.time_range.start < k.end for k in kernels) for c in copies
    )
    return {"large_copies": len(copies), "beside_kernels": beside}
