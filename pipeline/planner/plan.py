"""From a model's shape, a machine and a configuration to a frozen Plan, with its reasons in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.config import Config
from pipeline.errors import ConfigError, DoesNotFit
from pipeline.planner.hardware import Hardware
from pipeline.planner.shape import DTYPE_BYTES, ModelShape
from pipeline.records import Plan

# The most rows a batch may have; the engine finds by a ramp how many of them pay. Beyond these none gained on any machine measured.
_CPU_ROWS, _GPU_ROWS = 64, 256
_CPU_CHUNK_TOKENS, _GPU_CHUNK_TOKENS = 1024, 4096
# Share of the memory left beside the weights that the KV cache of a batch may take; the rest is for activations, the
# copies made while a cache grows by concatenation, and other programs.
_KV_SHARE = 0.4


def make_plan(config: Config, shape: ModelShape, hardware: Hardware, resolved: Mapping[str, Any]) -> Plan:
    """Decide batch shape, KV placement and context. ``resolved`` holds dtype and layout. Raises DoesNotFit or ConfigError."""
    reasons: list[str] = []
    dtype, on_gpu = str(resolved["dtype"]), bool(hardware.gpu_bytes) and config.model.device_map == "auto"
    context = _context(config, shape, reasons)
    placement = _placement(config, on_gpu, reasons)
    kv_bytes = shape.kv_bytes_per_token(dtype)
    weights = weights_bytes(shape, config.model.quantization, dtype)
    free = sum(hardware.gpu_bytes) if on_gpu and placement == "device" else hardware.ram_bytes
    beside = weights if not (on_gpu and placement == "offloaded") else 0
    kv_room = int(max(0, free - beside) * _KV_SHARE)
    reasons.append(
        f"{shape.attention()}, {shape.layers} layers, {shape.kv_heads} KV heads of {shape.head_dim}: "
        f"{kv_bytes / 1024:.0f} KiB of KV cache a token; "
        f"about {weights / 2**20:.0f} MiB of weights in {config.model.quantization} ({dtype}); "
        f"{free / 2**30:.1f} GiB free, {kv_room / 2**30:.1f} GiB of it for the KV cache"
    )
    rows = config.engine.batch_rows or (_GPU_ROWS if on_gpu else _CPU_ROWS)
    held_bytes = kv_bytes // DTYPE_BYTES[dtype] if placement == "quantized" else kv_bytes  # one byte a number
    tokens = config.engine.batch_tokens or min(kv_room // held_bytes, rows * context)
    if placement == "disk":
        tokens = max(tokens, context)  # one layer at a time is in memory
    if tokens < min(context, 512):
        raise DoesNotFit(
            f"the KV cache of one prompt of {min(context, 512)} tokens needs {min(context, 512) * kv_bytes / 2**20:.0f} MiB, "
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
        lossy_last_resort=config.kv_cache.lossy_last_resort,
        reasons=tuple(reasons),
    )


def weights_bytes(shape: ModelShape, quantization: str, dtype: str) -> int:
    """Bytes of a gated decoder's weights, about: what 4- and 8-bit do not shrink (embeddings, head) stays in ``dtype``.

    nf4 with double quantization keeps 4 bits a weight and 8 bits of scale a block of 64 (Dettmers et al., QLoRA, 2023).
    """
    attention = shape.hidden * shape.head_dim * 2 * (shape.query_heads + shape.kv_heads)
    linear = shape.layers * (attention + 3 * shape.hidden * shape.intermediate)
    bits = {"none": 8 * DTYPE_BYTES[dtype], "int8": 8.0, "nf4": 4 + 8 / 64}[quantization]
    return int(linear * bits / 8) + shape.vocabulary * shape.hidden * DTYPE_BYTES[dtype]


def _context(config: Config, shape: ModelShape, reasons: list[str]) -> int:
    wanted = config.model.context_tokens
    if wanted is not None and wanted > shape.context_tokens:
        raise ConfigError(f"model.context_tokens is {wanted:,}, the model itself reads at most {shape.context_tokens:,}")
    context = wanted or shape.context_tokens
    reasons.append(f"prompts up to {context:,} tokens" + (f" (the model's own limit is {shape.context_tokens:,})" if wanted else ""))
    return context


def _placement(config: Config, on_gpu: bool, reasons: list[str]) -> Literal["device", "offloaded", "disk", "quantized"]:
    asked = config.kv_cache.placement
    if asked == "auto":
        reasons.append("KV cache on the device" if on_gpu else "KV cache on the device: without a GPU there is nothing to offload from")
        return "device"
    reasons.append(f"KV cache {asked}, as configured")
    return asked
