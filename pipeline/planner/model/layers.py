"""The two parts that a model's memory is made of: weights, and what a layer keeps of the tokens it has seen.
Plain ints.

What bitsandbytes shrinks: the weights of ``nn.Linear`` (and GPT-2's ``Conv1D``) except the output head.
Everything else stays in the model's own numbers: embeddings, head, biases, norms, router gates, convolutions,
and mixtures of experts, whose weights transformers 5 keeps as one three-dimensional parameter a layer that
bitsandbytes does not look at (measured: Mixtral's experts stay full in nf4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.errors import ConfigError

# The last is of caches alone: the library's 8-bit floating point layers, one scale a tensor.
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}
Module = Literal[
    "embeddings", "attention", "recurrent", "mlp", "experts", "router", "norms", "vision", "head"
]
LayerKind = Literal["full", "sliding", "chunked", "latent", "recurrent", "convolution", "hybrid", "none"]

# bitsandbytes nf4: 4 bits a weight and a scale for each block of 64; the scales are themselves kept in 8
# bits, with a float32 for each 256 of them (double quantization; Dettmers et al., QLoRA, 2023). A weight also
# carries its two code tables (16 and 256 float32).
_BLOCK, _SCALE_BLOCK, _CODE_TABLES_BYTES = 64, 256, 4 * (16 + 256)


@dataclass(frozen=True, slots=True)
class Weight:
    """``copies`` equal tensors of ``rows`` x ``columns`` numbers, in all layers together.

    ``shrinks`` says whether bitsandbytes quantizes it. Of a mixture of ``experts``, each token uses
    ``active``.
    """

    module: Module
    rows: int
    columns: int = 1
    copies: int = 1
    shrinks: bool = False
    experts: int = 1
    active: int = 1

    @property
    def parameters(self) -> int:
        """Numbers in all copies."""
        return self.rows * self.columns * self.copies

    @property
    def active_parameters(self) -> int:
        """Numbers that one token is multiplied with."""
        return self.parameters * self.active // self.experts

    def stored_bytes(self, quantization: str, dtype: str) -> int:
        """Bytes in memory in ``quantization`` (none, int8, nf4), the unquantized part in ``dtype``. Raises
        ConfigError.
        """
        if quantization == "none" or not self.shrinks:
            return self.parameters * dtype_bytes(dtype)
        numbers = self.rows * self.columns
        if quantization == "int8":  # a float32 scale a row (Dettmers et al., LLM.int8(), 2022)
            return self.copies * (numbers + 4 * self.rows)
        if quantization == "nf4":
            blocks = -(-numbers // _BLOCK)
            return self.copies * (
                -(-numbers // 2) + blocks + 4 * -(-blocks // _SCALE_BLOCK) + _CODE_TABLES_BYTES
            )
        raise ConfigError(f"cannot plan quantization {quantization!r}; known are none, int8 and nf4")


@dataclass(frozen=True, slots=True)
class Block:
    """Weights that go to one device together, under their path in the model: a layer, a table, a norm.

    ``buffer_bytes`` are those of its buffers that are stored with the weights. ``follows``: the path of
    the block whose weights are its own, too, as of a tied head.
    """

    path: str
    weights: tuple[Weight, ...] = ()
    layer: bool = False
    buffer_bytes: int = 0
    follows: str = ""

    def stored_bytes(self, quantization: str, dtype: str) -> int:
        """Bytes in memory, as of ``Weight``."""
        return self.buffer_bytes + sum(weight.stored_bytes(quantization, dtype) for weight in self.weights)


@dataclass(frozen=True, slots=True)
class Layer:
    """What one decoder layer keeps of the tokens it has seen.

    A token leaves ``heads`` x (``key_dim`` + ``value_dim``) numbers. ``window``: the layer keeps at most that
    many tokens less one, as the newest is there when it is needed. ``state`` numbers of the model's own kind
    and ``state_float32`` are kept once a row, however long it is.
    """

    kind: LayerKind
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    state: int = 0
    state_float32: int = 0

    @property
    def numbers_per_token(self) -> int:
        """Numbers that one more token adds, while below the window."""
        return self.heads * (self.key_dim + self.value_dim)

    def kept_tokens(self, tokens: int) -> int:
        """Tokens of a row of ``tokens`` that the layer still holds."""
        return tokens if self.window is None else min(tokens, max(self.window - 1, 1))

    def kept_bytes(self, tokens: int, dtype: str) -> int:
        """Bytes of one row of ``tokens``."""
        return self.kept_tokens(tokens) * self.numbers_per_token * dtype_bytes(dtype) + self.fixed_bytes(
            dtype
        )

    def fixed_bytes(self, dtype: str) -> int:
        """Bytes a row keeps whatever its length."""
        return self.state * dtype_bytes(dtype) + 4 * self.state_float32


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number. Raises ConfigError for a kind that is not known."""
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"cannot plan dtype {dtype!r}; known are {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]
