"""The shape of a model: what its weights, its cache and its activations take, in plain ints.

It comes from the model itself (``ModelFacts.shape``). Of a model that cannot be asked, config.json alone
gives that of a plain decoder; see ``plain_shape``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.planner.model.hf_config import HfConfigReader
from pipeline.planner.model.layers import DTYPE_BYTES, Block, Layer, Weight, dtype_bytes
from pipeline.planner.model.plain_decoder import all_blocks, all_weights, layer_weights

__all__ = ["DTYPE_BYTES", "ModelShape", "plain_shape"]


_SCORES = 4  # tensors of scores at once, some of which may be in 32 bits


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Layers, heads and widths. ``context_tokens`` is the model's own limit (position embeddings).

    ``kinds`` and ``weights`` say the rest; where they are left out, it is a plain gated decoder with full
    attention and a tied head. ``layer_weights`` are those of each layer that differs from the others.
    ``keeps_scores``: it attends by the plain formula, which makes a score of each pair of tokens.
    ``assumed``: the model could not be asked, and was taken for such a decoder. ``blocks``: what of the model
    goes to a device together, in the model's order.
    """

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocabulary: int
    context_tokens: int
    family: str = ""
    kinds: tuple[Layer, ...] = ()
    weights: tuple[Weight, ...] = ()
    layer_weights: tuple[tuple[Weight, ...], ...] = ()
    tied: bool = True
    assumed: bool = False
    keeps_scores: bool = False
    blocks: tuple[Block, ...] = ()

    def __post_init__(self) -> None:
        """Fill in what a plain decoder has."""
        if not self.kinds:
            kept = Layer("full", self.kv_heads, self.head_dim, self.head_dim)
            object.__setattr__(self, "kinds", (kept,) * self.layers)
        if not self.weights:
            query, key = self.query_heads * self.head_dim, self.kv_heads * self.head_dim
            layer = layer_weights(query, key, self.hidden, self.intermediate)
            every = all_weights(layer, self.layers, self.hidden, self.vocabulary, tied=self.tied)
            object.__setattr__(self, "weights", every)
            object.__setattr__(self, "layer_weights", (layer,))
        if not self.blocks:
            object.__setattr__(self, "blocks", all_blocks(self.weights, self.layer_weights, self.layers))

    # ── weights

    @property
    def parameters(self) -> int:
        """Numbers in the model, tied ones once."""
        return sum(weight.parameters for weight in self.weights)

    @property
    def active_parameters(self) -> int:
        """Numbers that take part in one token: of a mixture of experts, only the chosen ones."""
        return sum(weight.active_parameters for weight in self.weights)

    @property
    def matmul_parameters(self) -> int:
        """Active numbers without the look-up tables; a tied embedding counts, as it is the head."""
        looked_up = sum(weight.parameters for weight in self.weights if weight.module == "embeddings")
        return self.active_parameters - looked_up + (self.vocabulary * self.hidden if self.tied else 0)

    def weights_bytes(self, quantization: str, dtype: str) -> int:
        """Bytes of all weights in memory, in ``quantization``, with what is not shrunk in ``dtype``."""
        return sum(weight.stored_bytes(quantization, dtype) for weight in self.weights)

    def largest_layer_bytes(self, quantization: str, dtype: str) -> int:
        """Bytes of the weights of the largest layer."""
        return max(
            (
                sum(weight.stored_bytes(quantization, dtype) for weight in layer)
                for layer in self.layer_weights
            ),
            default=0,
        )

    def largest_module_bytes(self, quantization: str, dtype: str) -> int:
        """Bytes of the largest module of a layer: one matrix, or all experts of a layer, which are one
        module.
        """
        largest = 0
        for layer in self.layer_weights:
            experts = sum(
                weight.stored_bytes(quantization, dtype) for weight in layer if weight.module == "experts"
            )
            single = (
                weight.stored_bytes(quantization, dtype) // weight.copies
                for weight in layer
                if weight.module != "experts"
            )
            largest = max(largest, experts, *single)
        return largest

    def largest_matrix_bytes(self, dtype: str) -> int:
        """Bytes in plain numbers of the largest weight that is quantized."""
        return max(
            (weight.rows * weight.columns for weight in self.weights if weight.shrinks), default=0
        ) * dtype_bytes(dtype)

    def plain_layer_bytes(self, dtype: str) -> int:
        """Bytes in plain numbers of what is quantized of a layer, of the layer where that is most."""
        return max(
            (
                sum(weight.stored_bytes("none", dtype) for weight in layer if weight.shrinks)
                for layer in self.layer_weights
            ),
            default=0,
        )

    def read_bytes_per_step(self, quantization: str, dtype: str, rows: int = 1) -> int:
        """Bytes of weights that one decoding step of ``rows`` rows reads: of the experts, those that some row
        chooses.

        With r rows that choose k of E experts independently, E (1 - (1 - k/E)^r) of them are expected to be
        read.
        """
        total = 0.0
        for weight in self.weights:
            if weight.module == "embeddings" and not self.tied:
                continue
            share = 1 - (1 - weight.active / weight.experts) ** rows if weight.experts > 1 else 1.0
            total += weight.stored_bytes(quantization, dtype) * share
        return int(total)

    def bits_alone_bytes(self, bits: float) -> int:
        """Bytes if every number took ``bits`` and nothing else: the number that people quote, and that no
        library reaches.
        """
        return int(self.parameters * bits / 8)

    def unpacked(self, shapes: Collection[tuple[int, int]]) -> ModelShape:
        """The same model with its weights of these (out, in) not quantized."""

        def plain(weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
            return tuple(
                replace(weight, shrinks=weight.shrinks and (weight.rows, weight.columns) not in shapes)
                for weight in weights
            )

        return replace(
            self,
            weights=plain(self.weights),
            layer_weights=tuple(map(plain, self.layer_weights)),
            blocks=tuple(replace(block, weights=plain(block.weights)) for block in self.blocks),
        )

    # ── cache

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of keys and values one token adds in all layers: sum of heads x (key + value width) x bytes a
        number.

        An upper bound for sliding windows, which stop growing; ``kv_bytes`` is exact.
        """
        return sum(layer.numbers_per_token for layer in self.kinds) * dtype_bytes(dtype)

    def growing_bytes_per_token(self, dtype: str) -> int:
        """Bytes that a token adds however long the row is: without the layers that have a window."""
        return sum(layer.numbers_per_token for layer in self.kinds if layer.window is None) * dtype_bytes(
            dtype
        )

    def kv_bytes(self, tokens: int, dtype: str, rows: int = 1) -> int:
        """Bytes of the cache of ``rows`` rows of ``tokens`` each, fixed states included."""
        return rows * sum(layer.kept_bytes(tokens, dtype) for layer in self.kinds)

    def far_bytes(self, tokens: int, dtype: str, rows: int = 1) -> int:
        """Of ``kv_bytes``, what is on disk where the cache is there: layers that keep every token. Windows
        and states stay in memory.
        """
        return rows * sum(layer.kept_bytes(tokens, dtype) for layer in self._growing)

    def near_bytes(self, tokens: int, dtype: str, rows: int = 1) -> int:
        """Bytes in memory of a cache that is kept elsewhere: windows, states, and two layers' copies, one
        used while the next arrives.
        """
        kept = self.kv_bytes(tokens, dtype, rows) - self.far_bytes(tokens, dtype, rows)
        return kept + 2 * rows * max((layer.kept_bytes(tokens, dtype) for layer in self._growing), default=0)

    @property
    def _growing(self) -> list[Layer]:
        return [layer for layer in self.kinds if layer.window is None and layer.numbers_per_token]

    def fixed_bytes_per_row(self, dtype: str) -> int:
        """Bytes a row keeps whatever its length: recurrent and convolution states."""
        return sum(layer.fixed_bytes(dtype) for layer in self.kinds)

    def tokens_in(self, free_bytes: int, dtype: str) -> int:
        """The longest single row whose cache fits in ``free_bytes``; -1 where it never fills it."""
        fixed, growing = self.fixed_bytes_per_row(dtype), self.growing_bytes_per_token(dtype)
        if fixed > free_bytes:
            return 0
        widest = max((layer.window or 0 for layer in self.kinds), default=0)
        if self.kv_bytes(widest, dtype) <= free_bytes:
            beyond = free_bytes - self.kv_bytes(widest, dtype)
            return widest + beyond // growing if growing else -1
        low, high = 0, widest
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.kv_bytes(middle, dtype) <= free_bytes else (low, middle - 1)
        return low

    def with_kv_heads(self, heads: int) -> ModelShape:
        """The same model had it ``heads`` KV heads; only its cache is changed."""
        kinds = tuple(
            replace(layer, heads=heads) if layer.kind in {"full", "sliding", "chunked", "hybrid"} else layer
            for layer in self.kinds
        )
        return replace(self, kv_heads=heads, kinds=kinds)

    # ── activations

    def activation_bytes(self, chunk_tokens: int, dtype: str, rows: int = 1, past_tokens: int = 0) -> int:
        """Peak of what a pass over ``chunk_tokens`` tokens (all rows together) computes and drops again.

        Inside one layer: the larger of the MLP (residual, its copy, normed input and sum; gate, up and
        product; the rotary tables) and of attention (residual, its copy, normed input; queries, their rotated
        copy, output; new keys and values). Layers with a window join what they keep with the chunk, latent
        layers unpack it for every head. Or, after all layers, float32 logits of each row's last token.
        Attention that keeps no scores is taken for granted (SDPA, repeated heads not counted); its mask is a
        byte a pair.
        """
        numbers = max(
            chunk_tokens * self._mlp_numbers(),
            *(self._attention_numbers(layer, chunk_tokens, rows, past_tokens) for layer in self.kinds),
        )
        per_row = -(-chunk_tokens // max(rows, 1))
        mask = (
            rows * per_row * (per_row + past_tokens)
            if any(layer.numbers_per_token for layer in self.kinds)
            else 0
        )
        after = chunk_tokens * 2 * self.hidden * dtype_bytes(dtype) + rows * self.vocabulary * 4
        return max(numbers * dtype_bytes(dtype), after) + mask

    def unpacking_bytes(self, chunk_tokens: int, dtype: str, rows: int = 1, past_tokens: int = 0) -> int:
        """The same while the largest weight in 4 bits is there in plain numbers for a product: residual, its
        copy, normed input and a mask; what is multiplied, and what comes out.
        """
        per_row = -(-chunk_tokens // max(rows, 1))
        numbers = chunk_tokens * (4 * self.hidden + 2 * self.intermediate)
        mask = rows * per_row * (per_row + past_tokens)
        return self.largest_matrix_bytes(dtype) + numbers * dtype_bytes(dtype) + mask

    def scores_bytes(self, chunk_tokens: int, dtype: str, rows: int, past_tokens: int) -> int:
        """Of a pass of ``rows`` rows together with their past by the plain formula: scores, masked, shifted
        and as probabilities, and keys and values repeated for every query head; none by kernels.
        """
        if not self.keeps_scores:
            return 0
        seen = -(-chunk_tokens // max(rows, 1)) + past_tokens
        repeated = 2 * self.head_dim * rows * seen
        return self.query_heads * (_SCORES * chunk_tokens * seen + repeated) * dtype_bytes(dtype)

    def _mlp_numbers(self) -> int:
        """Numbers a token. Of experts, all that the token uses at once, each with its own output. Joined
        gates outlive their halves.
        """
        mixtures = [weight for weight in self.weights if weight.experts > 1]
        joined = any(
            weight.module == "mlp" and weight.rows == 2 * self.intermediate for weight in self.weights
        )
        wide = (4 if joined else 3) * self.intermediate
        if mixtures:
            wide = max(
                wide,
                mixtures[0].active
                * (
                    3 * max(weight.columns for weight in mixtures if weight.columns != self.hidden)
                    + self.hidden
                ),
            )
        return 4 * self.hidden + wide + 2 * self.head_dim

    def _attention_numbers(self, layer: Layer, chunk_tokens: int, rows: int, past_tokens: int) -> int:
        query = self.query_heads * self.head_dim
        found = chunk_tokens * (3 * self.hidden + 3 * query + layer.numbers_per_token)
        if layer.kind == "latent":
            return found + 3 * query * (chunk_tokens + rows * past_tokens)
        if layer.window is not None:
            return found + (chunk_tokens + rows * layer.kept_tokens(past_tokens)) * layer.numbers_per_token
        return found

    # ── names

    def attention(self) -> str:
        """MHA, GQA, MQA or MLA, or none where no layer keeps tokens."""
        kinds = {layer.kind for layer in self.kinds}
        if "latent" in kinds:
            return "MLA"
        if not any(layer.numbers_per_token for layer in self.kinds):
            return "no attention"
        if self.kv_heads == self.query_heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    def describe(self) -> str:
        """``GQA, 62 layers (52 sliding of 1,024 tokens, 10 full), 16 KV heads of 128``."""
        counts = Counter((layer.kind, layer.window) for layer in self.kinds)
        parts = [
            f"{count} {kind}" + (f" of {window:,} tokens" if window else "")
            for (kind, window), count in counts.items()
        ]
        kept = sorted(
            {(layer.heads, layer.key_dim, layer.value_dim) for layer in self.kinds if layer.numbers_per_token}
        )
        heads = "; ".join(
            f"{_counted(count, 'KV head')} of {_width(key, value)}" for count, key, value in kept
        )
        mixture = next(
            (
                f", {weight.active} of {weight.experts} experts a token"
                for weight in self.weights
                if weight.experts > 1
            ),
            "",
        )
        return (
            f"{self.attention()}, {self.layers} layers ({', '.join(parts)})"
            + (f", {heads}" if heads else "")
            + mixture
        )


def plain_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape of a plain decoder of the widths that a configuration (config.json as published) names.

    For a model that cannot be asked itself, and said so in ``assumed``: better than nothing for a batch size.
    Raises CannotPlan (a ConfigError) naming the missing key.
    """
    c = HfConfigReader(config)
    return ModelShape(
        layers=c.layers,
        query_heads=c.heads,
        kv_heads=c.kv_heads,
        head_dim=c.head_dim,
        hidden=c.hidden,
        intermediate=c.intermediate,
        vocabulary=c.number("vocab_size"),
        context_tokens=c.context_tokens,
        family=c.family,
        # The library ties the head where neither the file nor the family says otherwise.
        tied=c.flag("tie_word_embeddings", default=True),
        assumed=True,
    )


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


def _width(key: int, value: int) -> str:
    return str(key) if key == value else f"{key} + {value}"
