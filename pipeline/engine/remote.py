"""A plan for a backend whose weights are elsewhere: how many requests are under way at once, and how long
they may be. Nothing is said of memory, because none of it is here.
"""

from __future__ import annotations

from pipeline.config import Config
from pipeline.engine.interface import PlanRequest
from pipeline.records import Plan


def plan_without_weights(config: Config, request: PlanRequest, rows: int, reasons: tuple[str, ...]) -> Plan:
    """``rows`` requests at once unless ``engine.batch_rows`` says another number; batches are bounded by
    ``engine.batch_tokens``, else by nothing but their rows.
    """
    context = request.wish.context_tokens
    rows = request.wish.rows or rows
    tokens = config.engine.batch_tokens or rows * context
    return Plan(
        dtype=str(request.resolved["dtype"]),
        quantization=config.model.quantization,
        placement="device",
        layout=request.resolved["layout"],
        context_tokens=context,
        max_batch_rows=rows,
        batch_tokens=max(tokens, context),
        prefill_chunk_tokens=config.engine.prefill_chunk_tokens or context,
        kv_bytes_per_token=0,
        threads=config.engine.threads,
        reasons=(f"prompts up to {context:,} tokens", f"{rows} requests at once", *reasons),
    )
