"""Which models packed passes are for: told by the configuration where it can be, else found by trying a few
tokens at load.
"""

from __future__ import annotations

from typing import Any

import torch

from pipeline.engine.model.forward import attention_as, input_device
from pipeline.engine.packed.attention import IMPLEMENTATION
from pipeline.engine.packed.feed import Feed, Row
from pipeline.engine.packed.model_runner import PackedModelRunner
from pipeline.engine.packed.page_allocator import Run
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.sequence import HeldBeginning
from pipeline.engine.trial import VOCABULARY, Agreement, compared, reason_against, trial_tokens
from pipeline.records import Plan


def sliding_window(config: Any) -> int | None:
    """Tokens that every layer sees, None where all see everything. Rows beyond it are not for packed
    attention.
    """
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    if kinds and not kinds & {"sliding_attention", "chunked_attention"}:
        return None
    sizes = [getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return min((size for size in sizes if isinstance(size, int)), default=None)


def spread(model: Any) -> str | None:
    """What to say of a model whose layers are on several devices, None of one that is in one place."""
    # its weights are nowhere until they are needed; offloaded ones, too
    streamed = hasattr(model.get_input_embeddings(), "computes_on")
    devices = {
        parameter.device
        for parameter in model.parameters()
        if not (streamed and parameter.device.type == "meta")
    }
    return "it is spread over several devices" if len(devices) > 1 else None


def unsupported(model: Any, plan: Plan) -> str | None:
    """Why packed passes are not for this model, found by comparing them with plain ones on a few tokens; None
    when they are.
    """
    config = model.config.get_text_config()
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        return f"its rotary embedding ({rope}) depends on the longest row"
    if (reason := spread(model)) is not None:
        return reason
    return reason_against(lambda: _packed_and_plain(model, config.vocab_size), exact=plan.dtype == "float32")


def _packed_and_plain(model: Any, vocabulary: int) -> Agreement:
    """Next-token logits of packed and of plain reading of two prompts with a shared prefix."""
    device = input_device(model)
    shared = trial_tokens(9, vocabulary)
    tails = [[5, 11, 2 + min(vocabulary, VOCABULARY) // 2], [17, 4]]
    with torch.inference_mode():
        expected = torch.stack(
            [model(torch.tensor([[*shared, *tail]], device=device)).logits[0, -1].float() for tail in tails]
        )
    with torch.inference_mode(), attention_as(model, IMPLEMENTATION):
        packed = PackedModelRunner(model, KvPool(1 + len(tails), device))
        begun = Row(None, Run(0, 1))
        for stretch in (shared[:5], shared[5:]):
            packed.extend(begun, stretch)
        prefix = HeldBeginning(0, len(shared), Run(0, 1))
        rows = [Row(prefix, Run(1 + place, 1)) for place in range(len(tails))]
        packed.run([Feed(row, tail[:1], keep=True, logits=()) for row, tail in zip(rows, tails, strict=True)])
        found = packed.run(
            [
                Feed(row, tail[1:], keep=True, logits=(len(tail) - 2,))
                for row, tail in zip(rows, tails, strict=True)
            ]
        )
    return compared(found, expected)
