"""The shape of a model, read from its configuration: what the memory formulas need, in plain ints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Layers, heads and widths. ``context_tokens`` is the model's own limit (position embeddings)."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocabulary: int
    context_tokens: int

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of keys and values one token keeps in all layers: layers x 2 x kv heads x head dim x bytes a number.

        An upper bound for models with sliding windows or recurrent layers, which keep less.
        """
        return self.layers * 2 * self.kv_heads * self.head_dim * DTYPE_BYTES[dtype]

    def prefill_bytes_per_token(self, dtype: str) -> int:
        """Bytes of activations one token of a prefill chunk holds at its peak, inside one layer: hidden states and the widened MLP."""
        return (4 * self.hidden + 3 * self.intermediate) * DTYPE_BYTES[dtype]

    def attention(self) -> str:
        """MHA, GQA or MQA."""
        if self.kv_heads == self.query_heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """Shape from a model's config.json. Raises ConfigError naming the key that is missing."""
    text = {**config, **config.get("text_config", {})}
    heads = _first(text, "num_attention_heads", "n_head", "n_heads", "num_heads")
    hidden = _first(text, "hidden_size", "n_embd", "d_model")
    return ModelShape(
        layers=_first(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        query_heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_dim=text.get("head_dim") or hidden // heads,
        hidden=hidden,
        intermediate=_intermediate(text, hidden),
        vocabulary=_first(text, "vocab_size"),
        context_tokens=_context(text),
    )


def _context(text: Mapping[str, Any]) -> int:
    for key in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx"):
        if isinstance(text.get(key), int):
            return int(text[key])
    return 2048  # no limit in the configuration (ALiBi, recurrent models): a length every such model was trained for


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1  # Falcon
    return int(text.get("num_key_value_heads") or text.get("num_kv_heads") or heads)


def _intermediate(text: Mapping[str, Any], hidden: int) -> int:
    value = text.get("intermediate_size") or text.get("ffn_hidden_size") or text.get("n_inner") or 4 * hidden
    return int(max(value) if isinstance(value, list) else value)


def _first(text: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        if isinstance(text.get(key), int):
            return int(text[key])
    raise ConfigError(f"cannot plan model type {text.get('model_type')!r}: its configuration has none of {', '.join(keys)}")
