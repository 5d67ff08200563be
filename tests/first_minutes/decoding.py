"""How fast texts are decoded, and what a pass launches and waits for."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from pipeline.engine.model.loading import LoadedModel
from pipeline.records import KvPlacement
from tests.first_minutes.models import (
    QWEN3_4B,
    QWEN3_8B,
    drained,
    engine_on,
    kv_bytes,
    loaded_of,
    plan_for,
    random_model,
    requests_of,
    saved,
    shape,
    weights_bytes,
)
from tests.first_minutes.results import TINY, WORK, activities, attempt, bytes_a_second, say

_PROMPT, _LONG_PROMPT = (32, 32) if TINY else (512, 2048)


def decode_bf16() -> None:
    """An 8B shape, unquantized: packed and static batches at rising rows; then a pass in detail."""
    sizes = shape(QWEN3_8B)
    loaded, bandwidth = loaded_of(random_model(sizes)), bytes_a_second()
    for rows in (1, 4) if TINY else (1, 16, 64, 256):
        for static in (False, True):
            _ask(loaded, "none", sizes, rows, bandwidth, static=static)
    attempt("one pass", lambda: _one_pass(loaded, sizes, 4 if TINY else 64))


def decode_nf4() -> None:
    """A 4B shape loaded by the product in 4 and 8 bits, with keys and values in every place."""
    sizes = shape(QWEN3_4B)
    folder = saved("qwen3-4b", sizes)
    for quantization, all_rows in (("nf4", (1, 16, 64, 128)), ("int8", (16, 64))):
        loaded = _loaded(folder, quantization)
        bandwidth = bytes_a_second()
        for rows in all_rows[:1] if TINY else all_rows:
            _ask(loaded, quantization, sizes, rows, bandwidth)
        if quantization == "nf4":
            for placement in ("device", "offloaded", "disk", "quantized"):
                _ask(loaded, quantization, sizes, 8, bandwidth, static=True, placement=placement)
            attempt("one pass", lambda loaded=loaded: _one_pass(loaded, sizes, 4 if TINY else 32))
        del loaded


def _loaded(folder: Path, quantization: str) -> LoadedModel:
    from pipeline.config import ModelConfig
    from pipeline.engine.model.loading import load_model

    torch.cuda.reset_peak_memory_stats()
    config = ModelConfig(id=str(folder), quantization=quantization, dtype="bfloat16")  # type: ignore[arg-type]
    loaded = load_model(config, "bfloat16", WORK / "offload")
    names = ("load_seconds", "peak_load_bytes", "weights_bytes", "linear4bit", "linear8bit", "fused_parts")
    facts = {name: loaded.facts.get(name) for name in names}
    say("loaded", quantization=quantization, facts=facts, reserved=torch.cuda.memory_reserved())
    return loaded


def _ask(
    loaded: LoadedModel,
    quantization: str,
    sizes: dict[str, Any],
    rows: int,
    bandwidth: float,
    *,
    static: bool = False,
    placement: KvPlacement = "device",
) -> None:
    plan = plan_for(rows, quantization, sizes, placement, 512 if TINY else 4096)
    prompt = _PROMPT if placement == "device" else _LONG_PROMPT

    def pace() -> dict[str, Any]:
        return _pace(loaded, plan, static, rows, prompt, bandwidth, kv_bytes(sizes))

    attempt(
        "pace", pace, quantization=quantization, rows=rows, prompt=prompt, placement=placement, static=static
    )


def _pace(
    loaded: LoadedModel, plan: Any, static: bool, rows: int, prompt: int, bandwidth: float, kv: int
) -> dict[str, Any]:
    """A pass's time as the difference of long and short texts; ``bandwidth_share``: of what must be read."""
    few, many = (2, 4) if TINY else (4, 36)
    engine, told = engine_on(loaded, plan, static)
    torch.cuda.reset_peak_memory_stats()
    vocabulary = loaded.model.config.vocab_size
    drained(engine, requests_of(rows, prompt, few, vocabulary))
    short = drained(engine, requests_of(rows, prompt, few, vocabulary))
    long = drained(engine, requests_of(rows, prompt, many, vocabulary))
    step = (long - short) / (many - few)
    useful = weights_bytes(loaded.model) + rows * (prompt + many // 2) * kv
    return {
        "engine": told,
        "step_ms": 1000 * step,
        "tokens_per_second": rows / step,
        "prefill_tokens_per_second": rows * prompt / max(short - few * step, 1e-9),
        "bandwidth_share": useful / step / bandwidth,
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
    }


def _one_pass(loaded: LoadedModel, sizes: dict[str, Any], rows: int) -> dict[str, Any]:
    """Kernels, host waits and idle time of one packed decoding pass."""
    engine, told = engine_on(loaded, plan_for(rows, "none", sizes, room=1024))
    engine.admit(requests_of(rows, 32 if TINY else 256, 64, loaded.model.config.vocab_size))
    for _ in range(12):
        engine.step()
    waits = _waits(engine)
    with torch.profiler.profile(activities=activities()) as profile:
        engine.step()
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if str(event.device_type).endswith("CUDA")]
    busy = sum(event.time_range.elapsed_us() for event in kernels)
    span = max((event.time_range.end for event in kernels), default=0) - min(
        (event.time_range.start for event in kernels), default=0
    )
    longest: Counter[str] = Counter()
    for event in kernels:
        longest[event.name[:60]] += event.time_range.elapsed_us()
    engine.release(range(rows))
    return {
        "engine": told,
        "rows": rows,
        "kernels": len(kernels),
        "busy_ms": busy / 1000,
        "span_ms": span / 1000,
        "host_waits": sum(waits.values()),
        "where": waits.most_common(8),
        "longest": longest.most_common(12),
    }


def _waits(engine: Any) -> Counter[str]:
    """Lines that made the host wait in one pass, as torch warns of them."""
    if TINY:
        return Counter()
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.step()
    torch.cuda.set_sync_debug_mode("default")
    return Counter(
        f"{Path(each.filename).name}:{each.lineno}" for each in caught if "synchroniz" in str(each.message)
    )
