"""Tiny seeded random models of many families, built from their configuration classes.

Weights are drawn wide (standard deviation 0.25), so that logits are far from uniform and the margins between
the two best mean something; with the library's 0.02 every step would be a near-tie and equality would test
nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 199
SPREAD = 0.25
WINDOW = 16

_BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": SPREAD,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_GQA = {"num_key_value_heads": 2}
_HEAD = {"head_dim": 16}
_MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama (GQA)": ("llama", _GQA),
    "gpt_neox (MHA)": ("gpt_neox", {}),
    "falcon (MQA)": ("falcon", {"multi_query": True, "new_decoder_architecture": False, "alibi": False}),
    "mistral (sliding window)": ("mistral", {**_GQA, "sliding_window": WINDOW}),
    "gemma3 (sliding and full)": (
        "gemma3_text",
        {
            **_GQA,
            **_HEAD,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "falcon (ALiBi)": ("falcon", {"multi_query": True, "new_decoder_architecture": False, "alibi": True}),
    "bloom (ALiBi)": ("bloom", {"n_layer": 3, "n_head": 4}),
    "qwen3": ("qwen3", {**_GQA, **_HEAD}),
    "mixtral (MoE)": ("mixtral", {**_GQA, **_MOE}),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512}),
    "gemma2": ("gemma2", {**_GQA, **_HEAD, "sliding_window": WINDOW, "query_pre_attn_scalar": 16}),
    "phi3": ("phi3", _GQA),
    "olmo2": ("olmo2", _GQA),
    "granite": ("granite", _GQA),
    "cohere2": ("cohere2", {**_GQA, "sliding_window": WINDOW, "logit_scale": 1.0}),
    "deepseek_v3 (MLA)": (
        "deepseek_v3",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "first_k_dense_replace": 1,
        },
    ),
    "qwen3_next (hybrid)": (
        "qwen3_next",
        {
            **_GQA,
            **_HEAD,
            **_MOE,
            **_LINEAR,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
    ),
    "mamba2 (recurrent)": (
        "mamba2",
        {"state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 2, "expand": 2, "chunk_size": 16},
    ),
}
QUICK = tuple(FAMILIES)[:5]
RECURRENT = ("qwen3_next (hybrid)", "mamba2 (recurrent)")


def tiny_model(
    name: str, dtype: torch.dtype = torch.float32, attention: str | None = None, seed: int = 0
) -> Any:
    """The family's model with the same weights every time."""
    model_type, own = FAMILIES[name]
    config = AutoConfig.for_model(model_type, **{**_BASE, **own})
    torch.manual_seed(seed)
    extra = {"attn_implementation": attention} if attention else {}
    return AutoModelForCausalLM.from_config(config, dtype=dtype, **extra).eval()


def prompts(lengths: tuple[int, ...], seed: int = 1) -> list[tuple[int, ...]]:
    """Random prompts of the given lengths, without the special ids."""
    generator = torch.Generator().manual_seed(seed)
    return [
        tuple(torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()) for length in lengths
    ]
