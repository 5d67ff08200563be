"""The blocks that decoders are built of, each as the weights it holds: attention, MLPs, mixtures of experts.

Every function takes the configuration and returns the weights of one layer. Shapes are those of the tensors,
(out, in).
"""

from __future__ import annotations

from typing import Literal

from pipeline.planner.model.hf_config import HfConfigReader
from pipeline.planner.model.layers import Layer, Module, Weight

Flag = str | bool  # the name of a configuration key, or what it always is


def linear(module: Module, rows: int, columns: int, bias: bool = False) -> list[Weight]:
    """One ``nn.Linear``: the weight shrinks, the bias does not."""
    return [Weight(module, rows, columns, shrinks=True), *([Weight(module, rows)] if bias else [])]


def vector(module: Module, numbers: int, copies: int = 1) -> list[Weight]:
    """``copies`` parameters of ``numbers`` that are never quantized; none where there are none."""
    return [Weight(module, numbers, copies=copies)] if numbers and copies else []


def separate(
    c: HfConfigReader,
    qkv_bias: Flag = False,
    out_bias: Flag = False,
    norm: Literal["head", "width", "heads"] | None = None,
    normed: Flag = True,
    norm_numbers: int = 1,
    gate: bool = False,
) -> list[Weight]:
    """Query, key, value and output projections apart. ``norm``: norms of queries and keys, over one head,
    all, or each of all.
    """
    query, key = c.heads * c.head_dim, c.kv_heads * c.head_dim
    bias = c.flag(qkv_bias)
    found = linear("attention", query * (2 if gate else 1), c.hidden, bias)
    found += linear("attention", key, c.hidden, bias) * 2
    found += linear("attention", c.hidden, query, c.flag(out_bias))
    if norm and c.flag(normed):
        widths = (c.head_dim, c.head_dim) if norm == "head" else (query, key)
        found += [weight for width in widths for weight in vector("norms", width * norm_numbers)]
    return found


def fused(
    c: HfConfigReader, qkv_bias: Flag = False, out_bias: Flag = False, norm: bool = False
) -> list[Weight]:
    """One projection for queries, keys and values. ``norm``: a scale and a shift over a head, for queries and
    for keys.
    """
    query, key = c.heads * c.head_dim, c.kv_heads * c.head_dim
    found = linear("attention", query + 2 * key, c.hidden, c.flag(qkv_bias)) + linear(
        "attention", c.hidden, query, c.flag(out_bias)
    )
    return found + (vector("norms", 2 * c.head_dim, 2) if norm else [])


def latent(c: HfConfigReader) -> list[Weight]:
    """Multi-head latent attention (DeepSeek-V2, 2024): low-rank queries, keys and values from one shared
    latent.
    """
    bias, rank, rope = c.flag("attention_bias"), c.number("kv_lora_rank"), c.number("qk_rope_head_dim")
    query_width, value = c.number("qk_nope_head_dim") + rope, c.number("v_head_dim")
    query_rank = c.maybe("q_lora_rank")
    if query_rank:
        found = linear("attention", query_rank, c.hidden, bias) + vector("norms", query_rank)
        found += linear("attention", c.heads * query_width, query_rank)
    else:
        found = linear("attention", c.heads * query_width, c.hidden)
    found += linear("attention", rank + rope, c.hidden, bias) + vector("norms", rank)
    found += linear("attention", c.heads * (query_width - rope + value), rank)
    return found + linear("attention", c.hidden, c.heads * value, bias)


def latent_cache(c: HfConfigReader) -> Layer:
    """The library caches the latent and the shared rotary key of a token, not the expanded heads (measured on
    transformers 5.24).
    """
    return Layer("latent", 1, c.number("kv_lora_rank"), c.number("qk_rope_head_dim"))


def gated(
    c: HfConfigReader,
    width: int | None = None,
    bias: Flag = False,
    fused_gate: bool = False,
    module: Module = "mlp",
) -> list[Weight]:
    """Gate, up and down projections (GLU; Shazeer, 2020)."""
    wide, with_bias = width or c.intermediate, c.flag(bias)
    into = (
        linear(module, 2 * wide, c.hidden, with_bias)
        if fused_gate
        else linear(module, wide, c.hidden, with_bias) * 2
    )
    return into + linear(module, c.hidden, wide, with_bias)


def plain(c: HfConfigReader, width: int | None = None, bias: Flag = False, extra: int = 0) -> list[Weight]:
    """Up and down projections, and ``extra`` numbers of an activation that learns."""
    wide, with_bias = width or c.intermediate, c.flag(bias)
    return (
        linear("mlp", wide, c.hidden, with_bias)
        + linear("mlp", c.hidden, wide, with_bias)
        + vector("mlp", 1, extra)
    )


def experts(
    c: HfConfigReader, count: int, used: int, width: int, gated_experts: bool = True, bias: bool = False
) -> list[Weight]:
    """The experts of one layer: transformers 5 keeps them as three-dimensional parameters, which bitsandbytes
    leaves as they are.
    """
    into = (2 if gated_experts else 1) * width
    shapes = [(into, c.hidden), (c.hidden, width)] + ([(into, 1), (c.hidden, 1)] if bias else [])
    return [
        Weight("experts", count * rows, columns, experts=count, active=min(used, count))
        for rows, columns in shapes
    ]


def router(c: HfConfigReader, count: int, bias: bool = False, shrinks: bool = False) -> list[Weight]:
    """Scores of the experts; kept in full."""
    return [Weight("router", count, c.hidden, shrinks=shrinks), *(vector("router", count) if bias else [])]
