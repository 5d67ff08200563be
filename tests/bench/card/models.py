"""Models of published sizes whose weight files are all hole: everything about them can be followed but their
numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tests.engine.small_tokenizers import byte_level, wrapped

_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_QWEN3 = {
    "vocab_size": 151936,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}


def _qwen3(**sizes: Any) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(**_QWEN3, **sizes, **_TOKENS, architectures=["Qwen3ForCausalLM"])


def _llama(vocabulary: int, hidden: int, intermediate: int, layers: int, heads: int, **sizes: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
        **{"num_key_value_heads": 8, "max_position_embeddings": 131072, **sizes, **_TOKENS},
    )


def _qwen2_1_5b() -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        architectures=["Qwen2ForCausalLM"],
        **_TOKENS,
    )


def _gpt_oss_20b() -> Any:
    from transformers import GptOssConfig

    # the library's defaults are those of 120b
    return GptOssConfig(
        num_hidden_layers=24, num_local_experts=32, architectures=["GptOssForCausalLM"], **_TOKENS
    )


# As published (config.json of Qwen/Qwen3-4B, Qwen/Qwen3-8B, meta-llama/Llama-3.1-70B, Llama-3.1-8B and
# Llama-2-7b, Qwen/Qwen2-1.5B, and openai/gpt-oss-20b, whose files have 4-bit experts of a kind of their own;
# here they are in 16 bits).
CONFIGS: Mapping[str, Callable[[], Any]] = {
    "qwen3-4b": lambda: _qwen3(hidden_size=2560, intermediate_size=9728, tie_word_embeddings=True),
    "qwen3-8b": lambda: _qwen3(hidden_size=4096, intermediate_size=12288, tie_word_embeddings=False),
    "llama-70b": lambda: _llama(128256, 8192, 28672, 80, 64),
    "llama3-8b": lambda: _llama(128256, 4096, 14336, 32, 32),
    "llama2-7b": lambda: _llama(
        32000, 4096, 11008, 32, 32, num_key_value_heads=32, max_position_embeddings=4096
    ),
    "qwen2-1.5b": _qwen2_1_5b,
    "gpt-oss-20b": _gpt_oss_20b,
}


def hollow(name: str, root: Path) -> Path:
    """The folder of a model under ``root``, made once: config.json, a small tokenizer, and a file of weights
    in bfloat16 that takes no room on the disk and reads as nought. ``qwen3-4b/2`` has two layers of it.
    """
    known, _, layers = name.partition("/")
    folder = root / name.replace("/", "-")
    weights = folder / "model.safetensors"
    if weights.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[known]()
    if layers:
        config.num_hidden_layers = int(layers)
        config.layer_types = (getattr(config, "layer_types", None) or [])[: int(layers)] or None
    config.dtype = "bfloat16"
    config.save_pretrained(folder)
    wrapped(byte_level()).save_pretrained(folder)
    _write_hole(weights, _stored_shapes(config))
    return folder


def _stored_shapes(config: Any) -> dict[str, list[int]]:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tied = set(model.all_tied_weights_keys)
    return {key: list(tensor.shape) for key, tensor in model.state_dict().items() if key not in tied}


def _write_hole(path: Path, shapes: Mapping[str, list[int]]) -> None:
    entries, offset = {}, 0
    for key, shape in shapes.items():
        end = offset + 2 * torch.Size(shape).numel()
        entries[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    part.replace(path)
