"""Layers whose memory does not grow with the text: state-space models, gated delta nets, short convolutions.

Each function returns the weights of one layer and what the layer keeps of a row. The recurrent state is
float32 in most of them, whatever the model computes in; the window of the convolution is in the model's own
numbers.
"""

from __future__ import annotations

from pipeline.planner.model.hf_config import HfConfigReader
from pipeline.planner.model.layers import Layer, Weight
from pipeline.planner.model.modules import linear, vector

Recurrent = tuple[list[Weight], Layer]


def _convolution(channels: int, kernel: int, bias: bool) -> list[Weight]:
    return [Weight("recurrent", channels, kernel), *(vector("recurrent", channels) if bias else [])]


def mamba(c: HfConfigReader, inner_norms: bool = False) -> Recurrent:
    """A selective state space (Gu and Dao, Mamba, 2023). ``inner_norms``: Jamba's, over the step and both
    projections.
    """
    prefixed = c.maybe("mamba_d_state") is not None
    state = c.number("mamba_d_state", "state_size")
    kernel = c.number("mamba_d_conv", "conv_kernel", default=4)
    expand = c.number("mamba_expand", "expand", default=2)
    width = expand * c.hidden if prefixed else c.number("intermediate_size", default=expand * c.hidden)
    rank = c.maybe("mamba_dt_rank", "time_step_rank") or -(-c.hidden // 16)  # "auto"
    bias = c.flag("mamba_proj_bias" if prefixed else "use_bias")
    found = linear("recurrent", 2 * width, c.hidden, bias) + linear("recurrent", rank + 2 * state, width)
    found += linear("recurrent", width, rank, bias=True) + linear("recurrent", c.hidden, width, bias)
    found += _convolution(
        width, kernel, c.flag("mamba_conv_bias" if prefixed else "use_conv_bias", default=True)
    )
    found += [Weight("recurrent", width, state), *vector("recurrent", width)]
    if inner_norms:
        found += vector("norms", rank) + vector("norms", state, 2)
    return found, Layer("recurrent", state=width * kernel, state_float32=width * state)


def mamba2(c: HfConfigReader, gate_norm: str | bool = True, out_bias: str | None = None) -> Recurrent:
    """State space duality (Dao and Gu, Mamba-2, 2024). ``gate_norm``: whether a norm stands before the
    output.
    """
    prefixed = c.maybe("mamba_d_state") is not None
    state = c.number("mamba_d_state", "state_size")
    kernel = c.number("mamba_d_conv", "conv_kernel", default=4)
    groups = c.number("mamba_n_groups", "n_groups", default=1)
    heads = c.number("mamba_n_heads", "num_heads")
    expand = c.number("mamba_expand", "expand", default=2)
    width = c.maybe("mamba_d_ssm") or expand * c.hidden
    channels = width + 2 * groups * state
    bias = c.flag("mamba_proj_bias" if prefixed else "use_bias")
    found = linear("recurrent", width + channels + heads, c.hidden, bias)
    found += linear("recurrent", c.hidden, width, c.flag(out_bias) if out_bias else bias)
    found += _convolution(
        channels, kernel, c.flag("mamba_conv_bias" if prefixed else "use_conv_bias", default=True)
    )
    found += vector("recurrent", heads, 3) + (vector("norms", width) if c.flag(gate_norm) else [])
    return found, Layer("recurrent", state=channels * kernel, state_float32=width * state)


def delta_net(c: HfConfigReader, joined: bool) -> Recurrent:
    """Gated delta net (Yang and others, 2024). ``joined``: Qwen3-Next's two wide projections; Qwen3.5 has
    four.
    """
    keys = c.number("linear_num_key_heads") * c.number("linear_key_head_dim")
    value_heads, value_dim = c.number("linear_num_value_heads"), c.number("linear_value_head_dim")
    values, kernel = value_heads * value_dim, c.number("linear_conv_kernel_dim", default=4)
    channels = 2 * keys + values
    if joined:
        found = linear("recurrent", channels + values, c.hidden) + linear(
            "recurrent", 2 * value_heads, c.hidden
        )
    else:
        found = linear("recurrent", channels, c.hidden) + linear("recurrent", values, c.hidden)
        found += linear("recurrent", value_heads, c.hidden) * 2
    found += linear("recurrent", c.hidden, values) + _convolution(channels, kernel, bias=False)
    found += vector("recurrent", value_heads, 2) + vector("norms", value_dim)
    return found, Layer(
        "recurrent",
        state=channels * kernel,
        state_float32=value_heads * c.number("linear_key_head_dim") * value_dim,
    )


def short_convolution(c: HfConfigReader) -> Recurrent:
    """A gated convolution over the last few tokens (LFM2)."""
    bias, kernel = c.flag("conv_bias"), c.number("conv_L_cache")
    found = linear("recurrent", 3 * c.hidden, c.hidden, bias) + linear("recurrent", c.hidden, c.hidden, bias)
    return found + _convolution(c.hidden, kernel, bias), Layer("convolution", state=c.hidden * kernel)
