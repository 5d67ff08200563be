"""Which kind each layer of a model is: its configuration's own list, or the rule of its family where the list
is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.errors import CannotPlan
from pipeline.planner.model.hf_config import HfConfigReader

KNOWN = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
    "conv",
    "hybrid",
    "moe",
    "mlp",
)
_OLD_NAMES = {"attention": "full_attention", "mamba": "linear_attention"}


def alternating(c: HfConfigReader) -> list[str]:
    """Sliding, full, sliding, ... (Gemma 2, gpt-oss)."""
    return ["full_attention" if index % 2 else "sliding_attention" for index in range(c.layers)]


def every(
    kind: str, period: int, key: str = "full_attention_interval"
) -> Callable[[HfConfigReader], list[str]]:
    """``kind``, except that each ``period``-th layer is full attention; ``key`` may set another period."""

    def pattern(c: HfConfigReader) -> list[str]:
        step = c.number(key, "_" + key, default=period)
        if kind == "sliding_attention" and "sliding_window" in c.keys and not c.keys["sliding_window"]:
            return ["full_attention"] * c.layers
        return [kind if (index + 1) % step else "full_attention" for index in range(c.layers)]

    return pattern


def layer_types(
    c: HfConfigReader, pattern: Callable[[HfConfigReader], list[str]] | None, window: int | None
) -> list[str]:
    """One word a layer, in the library's own words. Raises CannotPlan for a word that is not known here."""
    listed = c.get("layer_types") or c.get("layers_block_type") or _indexed(c)
    if listed is None:
        listed = pattern(c) if pattern else [_uniform(c, window)] * c.layers
    if not isinstance(listed, list | tuple):
        raise CannotPlan(
            f"cannot plan this layer kind: {listed!r} is no list of kinds (model type {c.family!r})"
        )
    kinds = [_OLD_NAMES.get(str(kind), str(kind)) for kind in listed]
    unknown = sorted(set(kinds) - set(KNOWN))
    if unknown:
        raise CannotPlan(f"cannot plan this layer kind: {', '.join(unknown)} (model type {c.family!r})")
    if len(kinds) != c.layers:
        raise CannotPlan(
            f"cannot plan model type {c.family!r}: it lists {len(kinds)} kinds of layers for {c.layers} "
            f"layers"
        )
    return kinds


def sliding_window(c: HfConfigReader, default: int | None) -> int | None:
    """Tokens a sliding layer looks back; None where the configuration switches it off."""
    if "use_sliding_window" in c.keys and not c.flag("use_sliding_window"):
        return None
    return c.maybe("sliding_window") if "sliding_window" in c.keys else default


def _uniform(c: HfConfigReader, default: int | None) -> str:
    if sliding_window(c, default):
        return "sliding_attention"
    return "chunked_attention" if c.maybe("attention_chunk_size") else "full_attention"


def _indexed(c: HfConfigReader) -> list[str] | None:
    """Families that name only their attention layers: by period and offset (Jamba), or by number (Bamba,
    LFM2).
    """
    if c.maybe("attn_layer_period"):
        period, offset = c.number("attn_layer_period"), c.number("attn_layer_offset", default=0)
        return [
            "full_attention" if index % period == offset else "linear_attention" for index in range(c.layers)
        ]
    for key, other in (("attn_layer_indices", "linear_attention"), ("full_attn_idxs", "conv")):
        if c.get(key) is not None:
            return ["full_attention" if index in c.get(key) else other for index in range(c.layers)]
    return None
