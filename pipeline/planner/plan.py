"""From a model's shape, a machine and a configuration to a frozen Plan, with its reasons in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.config import Config
from pipeline.errors import ConfigError, DoesNotFit
from pipeline.planner.hardware import Hardware
from pipeline.planner.shape import ModelShape
from pipeline.records import Plan

# The most rows a batch may have; the engine finds by a ramp how many of them pay. Beyond these none gained on any machine measured.
_CPU_ROWS, _GPU_ROWS = 64, 256
_CPU_CHUNK_TOKENS, _GPU_CHUNK_TOKENS = 1024, 4096
# Share of the memory left beside the weights that the KV cache of a batch may take; the rest is for activations, the
# copies made while a cache grows by concatenation, and other programs.
_KV_SHARE = 0.4


def choose_layout() -> Literal["instructions_first", "document_first"]:
    """What ``layout: auto`` means: instructions first, so that a task's prompts share their beginning.

    Document first pays when several tasks read one stored cache, and waits for the store.
    """
    return "instructions_first"


def make_plan(config: Config, shape: ModelShape, hardware: Hardware, resolved: Mapping[str, Any]) -> Plan:
    """Decide batch shape, KV placement and context. ``resolved`` holds dtype and layout. Raises DoesNotFit or ConfigError."""
    reasons: list[str] = []
    dtype, on_gpu = str(resolved["dtype"]), bool(hardware.gpu_bytes) and config.model.device_map == "auto"
    context = _context(config, shape, reasons)
    placement = _placement(config, on_gpu, reasons)
    kv_bytes = shape.kv_bytes_per_token(dtype)
    if shape.assumed and shape.family:
        reasons.append(f"the planner does not know the family {shape.family}; its memory is reckoned as that of a Llama of its widths")
    weights = weights_bytes(shape, config.model.quantization, dtype)
    free = sum(hardware.gpu_bytes) if on_gpu and placement == "device" else hardware.ram_bytes
    beside = weights if not (on_gpu and placement == "offloaded") else 0
    kv_room = int(max(0, free - beside) * _KV_SHARE)
    reasons.append(
        f"{shape.describe()}: {kv_bytes / 1024:.0f} KiB of KV cache a token; "
        f"about {weights / 2**20:.0f} MiB of weights in {config.model.quantization} ({dtype}); "
        f"{free / 2**30:.1f} GiB free, {kv_room / 2**30:.1f} GiB of it for the KV cache"
    )
    rows = config.engine.batch_rows or (_GPU_ROWS if on_gpu else _CPU_ROWS)
    tokens = config.engine.batch_tokens or _tokens_in_batch(shape, kv_room, rows, context, dtype)
    if tokens < min(context, 512):
        raise DoesNotFit(
            f"the KV cache of one prompt of {min(context, 512)} tokens needs {shape.kv_bytes(min(context, 512), dtype) / 2**20:.0f} MiB, "
            f"{kv_room / 2**20:.0f} MiB are left beside the weights; use a smaller model, quantization nf4, kv_cache.placement offloaded, "
            "or a smaller model.context_tokens"
        )
    return Plan(
        dtype=dtype,
        quantization=config.model.quantization,
        placement=placement,
        layout=resolved["layout"],
        context_tokens=context,
        max_batch_rows=rows,
        batch_tokens=max(tokens, min(context, 512)),
        prefill_chunk_tokens=config.engine.prefill_chunk_tokens or (_GPU_CHUNK_TOKENS if on_gpu else _CPU_CHUNK_TOKENS),
        kv_bytes_per_token=kv_bytes,
        threads=config.engine.threads or hardware.cores,
        reasons=tuple(reasons),
    )


def _tokens_in_batch(shape: ModelShape, room_bytes: int, rows: int, context: int, dtype: str) -> int:
    """Rows x longest row that fit in ``room_bytes``, whatever the lengths: every token counted in every layer, states counted a row."""
    room = room_bytes - rows * shape.fixed_bytes_per_row(dtype)
    if room < 0:
        return 0
    per_token = shape.kv_bytes_per_token(dtype)
    return min(room // per_token, rows * context) if per_token else rows * context


def weights_bytes(shape: ModelShape, quantization: str, dtype: str) -> int:
    """Bytes of the weights in memory: what 4- and 8-bit do not shrink stays in ``dtype`` (see planner/layers.py)."""
    return shape.weights_bytes(quantization, dtype)


def _context(config: Config, shape: ModelShape, reasons: list[str]) -> int:
    wanted = config.model.context_tokens
    if wanted is not None and wanted > shape.context_tokens:
        raise ConfigError(f"model.context_tokens is {wanted:,}, the model itself reads at most {shape.context_tokens:,}")
    context = wanted or shape.context_tokens
    reasons.append(f"prompts up to {context:,} tokens" + (f" (the model's own limit is {shape.context_tokens:,})" if wanted else ""))
    return context


def _placement(config: Config, on_gpu: bool, reasons: list[str]) -> Literal["device", "offloaded"]:
    asked = config.kv_cache.placement
    if asked == "disk":
        raise ConfigError("kv_cache.placement: disk is not available in this version; use offloaded (host RAM), or auto")
    if asked == "auto":
        reasons.append("KV cache on the device" if on_gpu else "KV cache on the device: without a GPU there is nothing to offload from")
        return "device"
    reasons.append(f"KV cache {asked}, as configured")
    return asked
