"""A tiny configuration of every family that can be planned, for comparison with the library's own modules and
caches.
"""

from __future__ import annotations

from typing import Any

from tests.equivalence.families import _BASE, FAMILIES

_OWN = dict(FAMILIES.values())
_GQA = {"num_key_value_heads": 2}
_HEAD = {"head_dim": 16}
_MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_ROUTED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
_MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2}
_OLD = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512}
_LATENT = {
    key: value for key, value in _OWN["deepseek_v3"].items() if "expert" not in key and "moe" not in key
}
_LINEAR = {
    key: value
    for key, value in _OWN["qwen3_next"].items()
    if key.startswith(("linear_", "layer_", "head", "num_key"))
}

# What differs from ``_BASE``; the same family may stand here under several names.
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    **FAMILIES,
    "apertus": ("apertus", _GQA),
    "arcee": ("arcee", _GQA),
    "bamba": ("bamba", {**_GQA, **_MAMBA_2, "attn_layer_indices": [1]}),
    "codegen": ("codegen", {**_OLD, "rotary_dim": 8}),
    "cohere (norms of queries and keys)": ("cohere", {**_GQA, "use_qk_norm": True}),
    "cwm": (
        "cwm",
        {
            **_GQA,
            **_HEAD,
            "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "deepseek_v2": ("deepseek_v2", {**_OWN["deepseek_v3"], "n_group": None, "topk_group": None}),
    "deepseek_v2 (whole queries)": (
        "deepseek_v2",
        {**_OWN["deepseek_v3"], "n_group": None, "topk_group": None, "q_lora_rank": None},
    ),
    "dots1": ("dots1", {**_GQA, **_HEAD, **_ROUTED}),
    "ernie4_5": ("ernie4_5", {**_GQA, **_HEAD, "use_bias": True}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {**_GQA, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 40, "moe_num_shared_experts": 1},
    ),
    "exaone": ("exaone", _GQA),
    "exaone4": (
        "exaone4",
        {
            **_GQA,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "falcon (new decoder)": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon (one head each)": (
        "falcon",
        {"multi_query": False, "new_decoder_architecture": False, "parallel_attn": False},
    ),
    "falcon_h1": ("falcon_h1", {**_GQA, **_MAMBA_2, "mamba_d_ssm": 128, "mamba_rms_norm": True}),
    "falcon_mamba": ("falcon_mamba", {"state_size": 8}),
    "gemma": ("gemma", {**_GQA, **_HEAD, "tie_word_embeddings": True}),
    "glm": ("glm", {**_GQA, **_HEAD, "attention_bias": True}),
    "glm4": ("glm4", {**_GQA, **_HEAD}),
    "glm4_moe": ("glm4_moe", {**_GQA, **_ROUTED, "use_qk_norm": True, "attention_bias": True}),
    "gpt_bigcode": ("gpt_bigcode", _OLD),
    "gpt_oss": (
        "gpt_oss",
        {**_GQA, **_HEAD, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    ),
    "gptj": ("gptj", {**_OLD, "rotary_dim": 8}),
    "granitemoe": ("granitemoe", {**_GQA, **_MOE}),
    "granitemoehybrid": (
        "granitemoehybrid",
        {
            **_GQA,
            **_MOE,
            **_MAMBA_2,
            "layer_types": ["mamba", "attention", "mamba"],
            "shared_intermediate_size": 40,
        },
    ),
    "granitemoeshared": ("granitemoeshared", {**_GQA, **_MOE, "shared_intermediate_size": 40}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {**_GQA, **_HEAD}),
    "internlm3": ("internlm3", {**_GQA, **_HEAD}),
    "iquestcoder": ("iquestcoder", {**_GQA, **_HEAD}),
    "jamba": (
        "jamba",
        {
            **_GQA,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_dt_rank": 6,
            "mamba_d_state": 8,
        },
    ),
    "lfm2": ("lfm2", {**_GQA, "layer_types": ["conv", "full_attention", "conv"]}),
    "llama (biases)": ("llama", {**_GQA, "attention_bias": True, "mlp_bias": True}),
    "llama (wide heads, tied)": ("llama", {**_GQA, "head_dim": 24, "tie_word_embeddings": True}),
    "llama4_text": (
        "llama4_text",
        {
            **_GQA,
            **_HEAD,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 16,
            "intermediate_size_mlp": 80,
            "interleave_moe_layer_step": 2,
        },
    ),
    "mamba": ("mamba", {"state_size": 8}),
    "minimax_m2": ("minimax_m2", {**_GQA, **_HEAD, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "ministral": ("ministral", {**_GQA, **_HEAD, "sliding_window": 16}),
    "ministral3": ("ministral3", {**_GQA, **_HEAD}),
    "mpt": ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 3}),
    "nemotron": ("nemotron", _GQA),
    "olmo": ("olmo", _GQA),
    "olmo3": ("olmo3", {**_GQA, "sliding_window": 16}),
    "olmoe": ("olmoe", {**_GQA, **_MOE}),
    "opt": ("opt", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "persimmon": ("persimmon", {}),
    "phi": ("phi", {**_GQA, "qk_layernorm": True}),
    "phi3 (sliding)": ("phi3", {**_GQA, "sliding_window": 16}),
    "phimoe": ("phimoe", {**_GQA, **_MOE}),
    "qwen2": ("qwen2", _GQA),
    "qwen2 (sliding from a layer on)": (
        "qwen2",
        {**_GQA, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen2_moe": ("qwen2_moe", {**_GQA, **_MOE, "shared_expert_intermediate_size": 40}),
    "qwen3_5_text": ("qwen3_5_text", _LINEAR),
    "qwen3_moe": ("qwen3_moe", {**_GQA, **_HEAD, **_MOE, "mlp_only_layers": [1]}),
    "seed_oss": ("seed_oss", {**_GQA, **_HEAD}),
    "smollm3": ("smollm3", _GQA),
    "stablelm": ("stablelm", {**_GQA, "use_qkv_bias": True, "qk_layernorm": True}),
    "starcoder2": ("starcoder2", {**_GQA, "sliding_window": 16}),
    "vaultgemma": ("vaultgemma", {**_GQA, **_HEAD, "sliding_window": 16}),
    "youtu": ("youtu", _LATENT),
}
# One of each kind of attention, state and mixture; the others run with -m full.
QUICK = (
    *FAMILIES,
    "bamba",
    "deepseek_v2 (whole queries)",
    "falcon (new decoder)",
    "falcon_h1",
    "gpt_oss",
    "jamba",
    "lfm2",
    "llama4_text",
    "mamba",
    "opt",
    "phi",
    "qwen2 (sliding from a layer on)",
    "qwen2_moe",
    "qwen3_5_text",
    "stablelm",
)


def small_config(name: str) -> Any:
    """The family's configuration object."""
    from transformers import AutoConfig

    family, own = SMALL[name]
    return AutoConfig.for_model(family, **{**_BASE, **own})


def small_model(name: str, dtype: Any) -> Any:
    """Its model, seeded, with random weights."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(small_config(name), dtype=dtype).eval()
