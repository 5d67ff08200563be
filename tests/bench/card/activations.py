"""What passes over prompts hold of a card beside weights and cache, by models of published sizes, and what
the plan says of them.

Whole-size layers on a pretended card that follows and does not compute (``PRETEND_DRY=1``): the longest
prompt, and several that fill a pass, by packed passes and in static batches.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import ModelConfig
from pipeline.engine.model.facts import model_facts
from pipeline.engine.model.loading import load_model
from pipeline.engine.model.location import locate
from pipeline.engine.model.precision import architecture
from pipeline.engine.select import select_engine, static_engine
from pipeline.planner.memory import activations_bytes
from pipeline.records import Plan
from tests.bench.card.models import hollow
from tests.bench.card.requests import texts

if TYPE_CHECKING:  # it can be imported beside a card alone
    from tests.bench.card.device import Device

MODELS = ("qwen3-4b", "qwen3-8b", "llama3-8b", "llama2-7b", "qwen2-1.5b", "llama-70b")
_LONGEST_TOKENS, _CHUNK_TOKENS, _ROWS, _ROW_TOKENS, _NEW_TOKENS = 8192, 4096, 4, 1000, 8


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes: as planned, and the most that any pass held."""

    planned_bytes: int
    held_bytes: int


def activations(name: str, root: Path, device: Device) -> Activations:
    """Of model ``name`` in nf4, by two of its layers: no other is larger."""
    config = ModelConfig(id=str(hollow(f"{name}/2", root / "models")), quantization="nf4", dtype="bfloat16")
    shape = model_facts(architecture(locate(config, lambda _: None), config), config).shape
    assert shape is not None
    context = min(_LONGEST_TOKENS, shape.context_tokens)
    past = max(0, context - _CHUNK_TOKENS)
    planned = activations_bytes(shape, "bfloat16", _CHUNK_TOKENS, 1, past, on_card=True, unpacks=True)
    loaded = load_model(config, "bfloat16", root / "offload")
    plan = _plan(context, shape.kv_bytes_per_token("bfloat16"))
    long = texts(0, 1, context - _NEW_TOKENS, _NEW_TOKENS)
    together = texts(1, _ROWS, _ROW_TOKENS, _NEW_TOKENS)
    packed, _ = select_engine(loaded, plan, end_ids=(), pad_id=0)
    _held(packed, texts(99, 1, 2 * _NEW_TOKENS, _NEW_TOKENS), device)  # its pool is there from now on
    held = [_held(packed, requests, device) for requests in (long, together)]
    del packed
    gc.collect()
    static, _ = static_engine(loaded, plan, end_ids=(), pad_id=0)
    for requests, rows, tokens in ((long, 1, context), (together, _ROWS, _ROW_TOKENS + _NEW_TOKENS)):
        held.append(_held(static, requests, device) - shape.kv_bytes(tokens, "bfloat16", rows))
    return Activations(planned, max(held))


def _held(engine: Any, requests: list[Any], device: Device) -> int:
    """The most bytes allocated while ``requests`` were worked off, beside those that were before."""
    before = device.allocated_bytes
    device.begin()
    engine.admit(requests)
    while not engine.idle:
        for found in engine.step():
            if found.error:
                raise RuntimeError(found.error[1])
    return device.peak_allocated_bytes - before


def _plan(context: int, token_bytes: int) -> Plan:
    return Plan(
        dtype="bfloat16",
        quantization="nf4",
        placement="device",
        layout="instructions_first",
        context_tokens=context,
        max_batch_rows=_ROWS,
        batch_tokens=2 * _LONGEST_TOKENS,
        prefill_chunk_tokens=_CHUNK_TOKENS,
        kv_bytes_per_token=token_bytes,
        threads=1,
    )
