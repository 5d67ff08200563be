"""Mixtures of experts: which layers have one, how many experts, how wide, and what stands beside them."""

from __future__ import annotations

from pipeline.planner.model.hf_config import HfConfigReader
from pipeline.planner.model.layers import Weight
from pipeline.planner.model.modules import experts, gated, linear, plain, router, vector


def everywhere(c: HfConfigReader, _: int, linear_router: bool = False) -> list[Weight]:
    """Mixtral and its kin: every layer, experts as wide as ``intermediate_size``, no shared one."""
    count = c.number("num_local_experts", "num_experts")
    return router(c, count, shrinks=linear_router) + experts(
        c, count, c.number("num_experts_per_tok"), c.intermediate
    )


def qwen(c: HfConfigReader, layer: int, shared: bool = False) -> list[Weight]:
    """Qwen: ``decoder_sparse_step`` and ``mlp_only_layers`` say which layers; Qwen2 and Next have a shared
    expert behind a gate.
    """
    count = c.number("num_experts", "num_local_experts")
    if (
        layer in c.get("mlp_only_layers", [])
        or count == 0
        or (layer + 1) % c.number("decoder_sparse_step", default=1)
    ):
        return gated(c)
    found = router(c, count) + experts(
        c, count, c.number("num_experts_per_tok"), c.number("moe_intermediate_size")
    )
    if shared:
        found += gated(c, c.number("shared_expert_intermediate_size")) + linear("router", 1, c.hidden)
    return found


def deepseek(c: HfConfigReader, layer: int) -> list[Weight]:
    """DeepSeek and its kin: the first layers dense, then routed experts and shared ones, which act as one
    wide MLP.
    """
    if layer < c.number("first_k_dense_replace", default=0):
        return gated(c)
    count, width = (
        c.number("n_routed_experts", "num_experts", "num_local_experts"),
        c.number("moe_intermediate_size"),
    )
    found = router(c, count) + experts(c, count, c.number("num_experts_per_tok", default=1), width)
    shared = c.number("n_shared_experts", default=0)
    return found + (gated(c, shared * width) if shared else [])


def gpt_oss(c: HfConfigReader, _: int) -> list[Weight]:
    """Biases everywhere, the router's included."""
    count = c.number("num_local_experts", "num_experts")
    return router(c, count, bias=True) + experts(
        c, count, c.number("num_experts_per_tok"), c.intermediate, bias=True
    )


def granite(c: HfConfigReader, _: int) -> list[Weight]:
    """Routed experts where there are any, and a shared MLP whose gate and up projection are one."""
    count, width = c.number("num_local_experts", default=0), c.number("shared_intermediate_size", default=0)
    found = (
        router(c, count) + experts(c, count, c.number("num_experts_per_tok"), c.intermediate) if count else []
    )
    return found + (gated(c, width, fused_gate=True) if width else [])


def llama4(c: HfConfigReader, layer: int) -> list[Weight]:
    """Every ``interleave_moe_layer_step``-th layer: experts and a shared one of the same width; the others
    are dense and wider.
    """
    step = c.number("interleave_moe_layer_step", default=1)
    if layer not in c.get("moe_layers", range(step - 1, c.layers, step)):
        return gated(c, c.number("intermediate_size_mlp"))
    count = c.number("num_local_experts")
    found = router(c, count, shrinks=False) + experts(
        c, count, c.number("num_experts_per_tok"), c.intermediate
    )
    return found + gated(c)


def jamba(c: HfConfigReader, layer: int) -> list[Weight]:
    """Experts in every ``expert_layer_period``-th layer from ``expert_layer_offset`` on."""
    count = c.number("num_experts")
    if count <= 1 or layer % c.number("expert_layer_period") != c.number("expert_layer_offset"):
        return gated(c)
    return router(c, count) + experts(c, count, c.number("num_experts_per_tok"), c.intermediate)


def ernie(c: HfConfigReader, layer: int) -> list[Weight]:
    """Layers from ``moe_layer_start_index`` to ``moe_layer_end_index``; a correction of the scores is
    learnt.
    """
    last = c.number("moe_layer_end_index")
    inside = c.number("moe_layer_start_index") <= layer <= (last if last >= 0 else c.layers - 1)
    if not inside or (layer + 1) % c.number("moe_layer_interval", default=1):
        return gated(c, bias="use_bias")
    count, width = c.number("moe_num_experts"), c.number("moe_intermediate_size")
    found = router(c, count) + vector("router", count) + experts(c, count, c.number("moe_k"), width)
    shared = c.number("moe_num_shared_experts", default=0)
    return found + (gated(c, shared * width, bias="use_bias") if shared else [])


def lfm2(c: HfConfigReader, _: int) -> list[Weight]:
    """Dense: a gated MLP whose width is two thirds of the configured one, rounded up."""
    width = c.number("block_ff_dim", "intermediate_size")
    if c.flag("block_auto_adjust_ff_dim", default=True):
        width = int(float(c.get("block_ffn_dim_multiplier", 1.0)) * (2 * width // 3))
        multiple = c.number("block_multiple_of", default=256)
        width = -(-width // multiple) * multiple
    return gated(c, width)


def apertus(c: HfConfigReader, _: int) -> list[Weight]:
    """Dense: an activation with two learnt numbers."""
    return plain(c, bias="mlp_bias", extra=2)
