"""Reading a model's configuration: one word for what families call by many names, and sentences for what is
missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import CannotPlan

# where configurations of several parts keep the decoder
_INNER = (
    "text_config",
    "llm_config",
    "language_config",
)
# Families that name the width inside the MLP their own way; absent or null means four times the hidden width.
_WIDTH_KEYS = {
    "gpt2": "n_inner",
    "gptj": "n_inner",
    "codegen": "n_inner",
    "gpt_bigcode": "n_inner",
    "opt": "ffn_dim",
    "falcon": "ffn_hidden_size",
}


class HfConfigReader:
    """The decoder's part of a configuration (``config.to_dict()``, or config.json as it was published)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        inner: Mapping[str, Any] = next(
            (config[key] for key in _INNER if isinstance(config.get(key), Mapping)), {}
        )
        self.keys: dict[str, Any] = {**config, **inner}
        if inner and "tie_word_embeddings" in config:  # the outer model holds the head
            self.keys["tie_word_embeddings"] = config["tie_word_embeddings"]
        self.family = str((inner or config).get("model_type") or "")

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of ``names`` that is an integer. Raises CannotPlan naming them all."""
        for name in names:
            value = self.keys.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
            if isinstance(value, float) and value.is_integer():
                return int(value)
        if default is not None:
            return default
        raise CannotPlan(
            f"cannot plan model type {self.family!r}: its configuration has none of {', '.join(names)}"
        )

    def maybe(self, *names: str) -> int | None:
        """As ``number``, None where absent or null."""
        return next(
            (
                int(self.keys[name])
                for name in names
                if isinstance(self.keys.get(name), int) and self.keys[name] is not False
            ),
            None,
        )

    def _size(self, *names: str) -> int:
        """As ``number``, at least one. Raises CannotPlan."""
        found = self.number(*names)
        if found < 1:
            raise CannotPlan(f"cannot plan model type {self.family!r}: its {names[0]} is {found}")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """A boolean key, ``default`` where absent or null."""
        value = self.keys.get(name)
        return default if value is None else bool(value)

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return self._size("num_hidden_layers", "n_layer", "n_layers", "num_layers")

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self._size("hidden_size", "n_embd", "d_model")

    @property
    def heads(self) -> int:
        """Query heads."""
        return self._size("num_attention_heads", "n_head", "n_heads", "num_heads")

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.maybe("num_key_value_heads", "num_kv_heads") or self.heads

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.maybe("head_dim") or self.hidden // self.heads

    @property
    def intermediate(self) -> int:
        """Width inside the MLP; the widest where layers differ."""
        if self.family in _WIDTH_KEYS:
            return self.maybe(_WIDTH_KEYS[self.family]) or 4 * self.hidden
        named = (self.keys.get(key) for key in ("intermediate_size", "ffn_hidden_size", "n_inner"))
        value = next((one for one in named if one), None)
        return int((max(value) if isinstance(value, list) else value) or 4 * self.hidden)

    @property
    def context_tokens(self) -> int:
        """The model's own limit."""
        names = (
            "max_position_embeddings",
            "n_positions",
            "max_sequence_length",
            "max_seq_len",
            "seq_length",
            "n_ctx",
        )
        # No limit in the configuration (ALiBi, recurrent models): a length that every such model was trained
        # for.
        return self.maybe(*names) or 2048
