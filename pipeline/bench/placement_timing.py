"""What each placement of the KV cache costs on this machine: one prompt read and continued with its cache in
each, in turn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pipeline.engine.model.forward import Forward, synchronize
from pipeline.engine.static.engine import is_quantizable
from pipeline.engine.static.generate import PassLimits, decode, prefill
from pipeline.records import Decode, KvPlacement

PLACEMENTS: tuple[KvPlacement, ...] = ("device", "offloaded", "disk", "quantized")


@dataclass(frozen=True, slots=True)
class Stay:
    """One prompt in one placement: seconds until its first logits, seconds for each token after the first,
    the tokens.
    """

    prefill_seconds: float
    seconds_per_token: float
    tokens: tuple[int, ...]


def usable_placements(forward: Forward) -> list[KvPlacement]:
    """Those that are for this model."""
    return [placement for placement in PLACEMENTS if placement != "quantized" or is_quantizable(forward)]


def stay(forward: Forward, ids: Sequence[int], new_tokens: int, settings: PassLimits) -> Stay:
    """Read ``ids`` and write ``new_tokens`` (2 or more) greedily, whatever they are."""
    with torch.inference_mode():
        began = _now()
        rows = prefill(forward, [ids], settings, new_tokens)
        read = _now()
        (reply,) = decode(forward, rows, [Decode(new_tokens, loops_end=False)], (), settings.pad_id)
        written = _now()
    return Stay(read - began, (written - read) / (new_tokens - 1), tuple(reply.token_ids))


def _now() -> float:
    synchronize()
    return time.perf_counter()
