"""The model families that can be planned, one line each: what differs between them is norms, biases, fused
matrices and patterns.

A family that is not here is refused: a number that is about right for most families is wrong for the others.
Every line is compared with the family's real modules and real cache by tests/planner/model/test_families.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from pipeline.errors import CannotPlan
from pipeline.planner.model import modules, moe, recurrent
from pipeline.planner.model.hf_config import HfConfigReader
from pipeline.planner.model.layer_patterns import alternating, every
from pipeline.planner.model.layers import Layer, Weight

Attention = Callable[[HfConfigReader], list[Weight]]
FeedForward = Callable[[HfConfigReader, int], list[Weight]]


@dataclass(frozen=True, slots=True)
class Family:
    """``norms`` vectors of the hidden width a layer, each of ``norm_numbers`` numbers (scale, or scale and
    shift, or none).
    """

    attention: Attention
    feed: FeedForward
    norms: int | Callable[[HfConfigReader], int] = 2
    norm_numbers: int = 1
    recurrent: Callable[[HfConfigReader], recurrent.Recurrent] | None = None
    pattern: Callable[[HfConfigReader], list[str]] | None = None
    cached_heads: Callable[[HfConfigReader], int] | None = None
    cache: Callable[[HfConfigReader], Layer] | None = None
    outside: Callable[[HfConfigReader], list[Weight]] | None = (
        None  # beside embeddings, layers, last norm and head
    )
    layer_extra: Callable[[HfConfigReader], list[Weight]] | None = None
    final_norm: bool = True
    head_bias: bool | str = False
    tied: bool = False
    window: int | None = None  # sliding window where the configuration does not mention one


def _gated(c: HfConfigReader, _: int, **options: object) -> list[Weight]:
    return modules.gated(c, **options)  # type: ignore[arg-type]  # options are the table's own


def _plain(c: HfConfigReader, _: int, bias: bool | str = False, times: int | None = None) -> list[Weight]:
    return modules.plain(c, width=times * c.hidden if times else None, bias=bias)


def _positions(c: HfConfigReader, extra: int = 0) -> list[Weight]:
    return [Weight("embeddings", c.context_tokens + extra, c.hidden)]


def _sinks(c: HfConfigReader) -> list[Weight]:
    return modules.vector("attention", c.heads)


def _opt(c: HfConfigReader) -> list[Weight]:
    if c.number("word_embed_proj_dim", default=c.hidden) != c.hidden or not c.flag(
        "do_layer_norm_before", default=True
    ):
        raise CannotPlan(
            "cannot plan this layer kind: OPT with projected embeddings or the norm after the layer "
            "(opt-350m)"
        )
    return _positions(c, extra=2)


def _bloom(c: HfConfigReader) -> list[Weight]:
    return modules.vector("norms", 2 * c.hidden)


def _falcon_norms(c: HfConfigReader) -> int:
    if not c.flag("parallel_attn", default=True):
        return 2
    return c.number("num_ln_in_parallel_attn", default=2 if c.flag("new_decoder_architecture") else 1)


def _falcon_heads(c: HfConfigReader) -> int:
    """The new decoder repeats keys and values for every query head before it caches them."""
    return c.heads if c.flag("new_decoder_architecture") else c.kv_heads


def _unshrunk(weights: list[Weight]) -> list[Weight]:
    """Falcon's linear layers are a class of their own, which bitsandbytes passes over: no quantization
    shrinks them.
    """
    return [replace(weight, shrinks=False) for weight in weights]


def _falcon_attention(c: HfConfigReader) -> list[Weight]:
    return _unshrunk(modules.fused(c, qkv_bias="bias", out_bias="bias"))


def _falcon_feed(c: HfConfigReader, _: int) -> list[Weight]:
    return _unshrunk(modules.plain(c, bias="bias"))


def _stablelm_norms(c: HfConfigReader) -> int:
    return 1 if c.flag("use_parallel_residual") else 2


def _bigcode_heads(c: HfConfigReader) -> int:
    return 1 if c.flag("multi_query", default=True) else c.heads


def _all_recurrent(c: HfConfigReader) -> list[str]:
    return ["linear_attention"] * c.layers


_separate = modules.separate
_all = partial(_separate, qkv_bias="attention_bias", out_bias="attention_bias")
_none: Attention = _separate
_head_norms = partial(_all, norm="head")
_width_norms = partial(_all, norm="width")
_LLAMA = Family(_all, partial(_gated, bias="mlp_bias"))
_GLM = Family(partial(_separate, qkv_bias="attention_bias"), partial(_gated, fused_gate=True))
_GEMMA_2 = Family(_all, _gated, norms=4, tied=True, pattern=alternating, window=4096)
_OLMO_2 = Family(_width_norms, _gated)
_LATENT = Family(modules.latent, moe.deepseek, cache=modules.latent_cache)
_MAMBA = Family(_none, lambda *_: [], norms=1, recurrent=recurrent.mamba, pattern=_all_recurrent, tied=True)
_LEGACY = Family(
    partial(modules.fused, qkv_bias=True, out_bias=True),
    partial(_plain, bias=True),
    norm_numbers=2,
    tied=True,
)
_QWEN_NEXT = partial(_all, norm="head", gate=True)
_delta = recurrent.delta_net

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(_none, _gated, window=4096),
    "ministral": Family(_none, _gated, window=4096),
    "ministral3": Family(_none, _gated),
    "mixtral": Family(_none, moe.everywhere),
    "qwen2": Family(partial(_separate, qkv_bias=True), _gated),
    "qwen2_moe": Family(partial(_separate, qkv_bias="qkv_bias"), partial(moe.qwen, shared=True)),
    "qwen3": Family(_head_norms, _gated),
    "qwen3_moe": Family(_head_norms, moe.qwen),
    "qwen3_next": Family(
        _QWEN_NEXT,
        partial(moe.qwen, shared=True),
        recurrent=partial(_delta, joined=True),
        pattern=every("linear_attention", 4),
    ),
    "qwen3_5_text": Family(
        _QWEN_NEXT, _gated, recurrent=partial(_delta, joined=False), pattern=every("linear_attention", 4)
    ),
    "gemma": Family(_all, _gated, tied=True),
    "gemma2": _GEMMA_2,
    "gemma3_text": replace(
        _GEMMA_2, attention=_head_norms, pattern=every("sliding_attention", 6, key="sliding_window_pattern")
    ),
    "vaultgemma": Family(_all, _gated, tied=True, pattern=alternating, window=4096),
    "phi": Family(
        partial(_separate, qkv_bias=True, out_bias=True, norm="head", normed="qk_layernorm", norm_numbers=2),
        partial(_plain, bias=True),
        norms=1,
        norm_numbers=2,
        head_bias=True,
    ),
    "phi3": Family(modules.fused, partial(_gated, fused_gate=True)),
    "phimoe": Family(
        _all, partial(moe.everywhere, linear_router=False), norm_numbers=2, head_bias="lm_head_bias"
    ),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "youtu": replace(_LATENT, feed=_gated, tied=True),
    "gpt_oss": Family(_all, moe.gpt_oss, layer_extra=_sinks, pattern=alternating, window=128),
    "gpt2": replace(_LEGACY, outside=_positions),
    "gpt_neox": replace(
        _LEGACY,
        attention=partial(modules.fused, qkv_bias="attention_bias", out_bias="attention_bias"),
        tied=False,
    ),
    "gptj": Family(_none, partial(_plain, bias=True), norms=1, norm_numbers=2, head_bias=True),
    "codegen": Family(modules.fused, partial(_plain, bias=True), norms=1, norm_numbers=2, head_bias=True),
    "gpt_bigcode": replace(_LEGACY, outside=_positions, cached_heads=_bigcode_heads),
    "opt": Family(
        partial(_separate, qkv_bias="enable_bias", out_bias="enable_bias"),
        partial(_plain, bias="enable_bias"),
        norm_numbers=2,
        outside=_opt,
        tied=True,
    ),
    "bloom": replace(_LEGACY, feed=partial(_plain, bias=True, times=4), outside=_bloom),
    "mpt": Family(modules.fused, partial(_plain, times=4), tied=True),
    "falcon": Family(
        _falcon_attention,
        _falcon_feed,
        norms=_falcon_norms,
        norm_numbers=2,
        cached_heads=_falcon_heads,
        tied=True,
    ),
    "persimmon": Family(
        partial(modules.fused, qkv_bias=True, out_bias=True, norm=True),
        partial(_plain, bias=True),
        norm_numbers=2,
    ),
    "olmo": Family(_all, _gated, norm_numbers=0, final_norm=False),
    "olmo2": _OLMO_2,
    "olmo3": replace(_OLMO_2, pattern=every("sliding_attention", 4), window=4096),
    "olmoe": Family(_width_norms, moe.everywhere),
    "granite": _LLAMA,
    "cwm": replace(_LLAMA, window=8192),
    "emu3_text_model": _LLAMA,
    "exaone": _LLAMA,
    "internlm3": _LLAMA,
    "iquestcoder": _LLAMA,
    "hunyuan_v1_dense": Family(_head_norms, _gated),
    "granitemoe": Family(_all, moe.everywhere),
    "granitemoeshared": Family(_all, moe.granite),
    "granitemoehybrid": Family(_all, moe.granite, recurrent=recurrent.mamba2, pattern=_all_recurrent),
    "cohere": Family(partial(_all, norm="heads", normed="use_qk_norm"), _gated, norms=1, tied=True),
    "cohere2": Family(
        _all,
        _gated,
        norms=1,
        tied=True,
        pattern=every("sliding_attention", 4, key="sliding_window_pattern"),
        window=4096,
    ),
    "stablelm": Family(
        partial(_separate, qkv_bias="use_qkv_bias", norm="heads", normed="qk_layernorm"),
        _gated,
        norms=_stablelm_norms,
        norm_numbers=2,
    ),
    "starcoder2": Family(
        partial(_separate, qkv_bias="use_bias", out_bias="use_bias"),
        partial(_plain, bias="use_bias"),
        norm_numbers=2,
        tied=True,
        window=4096,
    ),
    "nemotron": Family(_all, partial(_plain, bias="mlp_bias"), norm_numbers=2),
    "arcee": Family(_all, partial(_plain, bias="mlp_bias")),
    "apertus": Family(_head_norms, moe.apertus),
    "smollm3": replace(_LLAMA, tied=True),
    "seed_oss": Family(
        partial(_separate, qkv_bias="attention_bias", out_bias="attention_out_bias"),
        partial(_gated, bias="mlp_bias"),
    ),
    "ernie4_5": Family(
        partial(_separate, qkv_bias="use_bias", out_bias="use_bias"),
        partial(_gated, bias="use_bias"),
        tied=True,
    ),
    "ernie4_5_moe": Family(
        partial(_separate, qkv_bias="use_bias", out_bias="use_bias"),
        moe.ernie,
        tied=True,
        head_bias="use_bias",
    ),
    "glm": _GLM,
    "glm4": replace(_GLM, norms=4),
    "glm4_moe": Family(
        partial(_separate, qkv_bias="attention_bias", norm="head", normed="use_qk_norm"), moe.deepseek
    ),
    "dots1": Family(_head_norms, moe.deepseek),
    "exaone4": Family(
        partial(_separate, norm="head"), _gated, pattern=every("sliding_attention", 4), window=4096
    ),
    "minimax_m2": Family(partial(_separate, norm="width"), moe.everywhere),
    "llama4_text": Family(_all, moe.llama4),
    "mamba": _MAMBA,
    "falcon_mamba": _MAMBA,
    "mamba2": replace(_MAMBA, recurrent=recurrent.mamba2, tied=False),
    "jamba": Family(_none, moe.jamba, recurrent=partial(recurrent.mamba, inner_norms=True)),
    "bamba": replace(_LLAMA, recurrent=recurrent.mamba2, pattern=_all_recurrent),
    "falcon_h1": Family(
        _all,
        partial(_gated, bias="mlp_bias"),
        recurrent=partial(recurrent.mamba2, gate_norm="mamba_rms_norm", out_bias="projectors_bias"),
        pattern=lambda c: ["hybrid"] * c.layers,
    ),
    "lfm2": Family(
        partial(_separate, norm="head"), moe.lfm2, recurrent=recurrent.short_convolution, tied=True
    ),
}
