"""Tiny models with random weights, saved as folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig

from tests.engine.small_tokenizers import byte_level, wrapped

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def save_llama(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    return _save(folder, LlamaConfig(**{**SIZES, **changes}), seed)


def save_mixtral(folder: Path) -> Path:
    return _save(folder, MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2), 0)


def _save(folder: Path, config: Any, seed: int) -> Path:
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    wrapped(byte_level()).save_pretrained(folder)
    return folder
