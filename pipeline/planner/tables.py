"""Tables people know, as plain records: what a cache weighs and how long it travels, what fits where. And as
text, by rich.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.planner.model.shape import ModelShape
from pipeline.system.hardware_datasheet import NVME, SATA, Link
from pipeline.system.units import amount, duration

CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
CARD_GIB = (8, 12, 16, 24, 48, 80)
# Of a card's memory: what the driver, CUDA's own context and activations take before a weight is placed.
RESERVE_BYTES = int(1.0 * 2**30)
_LINKS = (("PCIe 3.0 x16", Link(3, 16)), ("PCIe 4.0 x16", Link(4, 16)), ("PCIe 5.0 x16", Link(5, 16)))


@dataclass(frozen=True, slots=True)
class CacheRow:
    """A context's cache, and the time one way over each link: for a step of decoding it travels once if it is
    offloaded.
    """

    tokens: int
    cache_bytes: int
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class FitRow:
    """Tokens (all rows together) that fit beside the weights under one kind of attention; -1: they never fill
    it.
    """

    attention: str
    kv_heads: int
    bytes_per_token: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SizeRow:
    """A model of so many parameters in 4 bits, and the smallest card that holds it with ``context_tokens`` of
    cache.

    ``bits_alone_bytes`` is the number people quote (4 bits a parameter); ``weights_bytes`` counts scales and
    what stays in 16 bits.
    """

    name: str
    parameters: int
    bits_alone_bytes: int
    weights_bytes: int
    cache_bytes: int
    fits: dict[int, bool]


def cache_table(shape: ModelShape, dtype: str, contexts: Sequence[int] = CONTEXTS) -> list[CacheRow]:
    """Context x bytes x transfer time over PCIe 3, 4 and 5 (pinned), from NVMe and from SATA."""
    rates = {name: link.pinned_bytes_per_second for name, link in _LINKS}
    rates |= {disk.name: disk.read_bytes_per_second for disk in (NVME, SATA)}
    rows = []
    for tokens in contexts:
        held = shape.kv_bytes(tokens, dtype)
        rows.append(CacheRow(tokens, held, {name: held / rate for name, rate in rates.items()}))
    return rows


def attention_table(shape: ModelShape, dtype: str, free_bytes: int) -> list[FitRow]:
    """Tokens in ``free_bytes`` were this model MHA, GQA (its own number of KV heads, or 8) or MQA; MLA and
    the like only as they are.
    """
    grouped = shape.kv_heads if 1 < shape.kv_heads < shape.query_heads else min(8, shape.query_heads)
    kinds = {"MHA": shape.query_heads, "GQA": grouped, "MQA": 1}
    if shape.attention() not in kinds:
        return [_fit(shape.attention(), shape, dtype, free_bytes)]
    return [_fit(name, shape.with_kv_heads(heads), dtype, free_bytes) for name, heads in kinds.items()]


def _fit(name: str, shape: ModelShape, dtype: str, free_bytes: int) -> FitRow:
    return FitRow(name, shape.kv_heads, shape.kv_bytes_per_token(dtype), shape.tokens_in(free_bytes, dtype))


def sizes_table(
    models: Iterable[tuple[str, ModelShape]], dtype: str = "float16", context_tokens: int = 4096
) -> list[SizeRow]:
    """Which models fit in cards of 8, 12, 16, 24, 48 and 80 GB in nf4, with the cache of one row of
    ``context_tokens``.
    """
    rows = []
    for name, shape in models:
        weights, cache = (
            shape.weights_bytes("nf4", dtype),
            shape.kv_bytes(min(context_tokens, shape.context_tokens), dtype),
        )
        needed = weights + cache + RESERVE_BYTES
        fits = {size: needed <= size * 2**30 for size in CARD_GIB}  # a card sold as 24 GB has 24 GiB
        rows.append(SizeRow(name, shape.parameters, shape.bits_alone_bytes(4), weights, cache, fits))
    return rows


# Dense decoders of the sizes that are published most, by their public configurations: enough for "which sizes
# fit".
_SIZES: tuple[tuple[str, tuple[int, int, int, int, int, int]], ...] = (
    # name, (layers, query heads, KV heads, hidden, intermediate, vocabulary)
    ("1B (Llama 3.2)", (16, 32, 8, 2048, 8192, 128256)),
    ("3B (Llama 3.2)", (28, 24, 8, 3072, 8192, 128256)),
    ("7B (Llama 2)", (32, 32, 32, 4096, 11008, 32000)),
    ("8B (Llama 3)", (32, 32, 8, 4096, 14336, 128256)),
    ("13B (Llama 2)", (40, 40, 40, 5120, 13824, 32000)),
    ("32B (Qwen 2.5)", (64, 40, 8, 5120, 27648, 152064)),
    ("70B (Llama 3)", (80, 64, 8, 8192, 28672, 128256)),
    ("123B (Mistral Large)", (88, 96, 8, 12288, 28672, 32768)),
)


def common_sizes() -> list[tuple[str, ModelShape]]:
    """Shapes of models of common sizes, for ``sizes_table``."""
    found = []
    for name, (layers, heads, kv_heads, hidden, intermediate, vocabulary) in _SIZES:
        tied = "3.2" in name
        shape = ModelShape(
            layers,
            heads,
            kv_heads,
            128 if hidden > 2048 else 64,
            hidden,
            intermediate,
            vocabulary,
            131072,
            tied=tied,
        )
        found.append((name, shape))
    return found


def render(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], width: int = 160) -> str:
    """A table as plain text; the first column is left-aligned, numbers are right-aligned."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Table

    table: Any = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    stream = StringIO()
    Console(file=stream, width=width, no_color=True).print(table)
    return stream.getvalue()


def render_cache(shape: ModelShape, dtype: str, rows: Sequence[CacheRow]) -> str:
    """The cache table as text."""
    names = list(rows[0].seconds) if rows else []
    body = [
        [f"{row.tokens:,}", amount(row.cache_bytes), *(duration(row.seconds[name]) for name in names)]
        for row in rows
    ]
    return render(
        f"KV cache by context, {shape.describe()}, {dtype}; time one way", ["tokens", "bytes", *names], body
    )


def render_attention(free_bytes: int, rows: Sequence[FitRow]) -> str:
    """The attention table as text."""
    body = [
        [
            row.attention,
            str(row.kv_heads),
            amount(row.bytes_per_token),
            f"{row.tokens:,}" if row.tokens >= 0 else "no limit",
        ]
        for row in rows
    ]
    return render(
        f"Tokens in {amount(free_bytes)} of free memory", ["attention", "KV heads", "a token", "tokens"], body
    )


def render_sizes(rows: Sequence[SizeRow], context_tokens: int = 4096) -> str:
    """The table of model sizes as text."""
    header = [
        "model",
        "parameters",
        "4 bits alone",
        "nf4 in memory",
        "cache",
        *(f"{size}GB" for size in CARD_GIB),
    ]
    body = [
        [
            row.name,
            f"{row.parameters / 1e9:.1f}e9",
            amount(row.bits_alone_bytes),
            amount(row.weights_bytes),
            amount(row.cache_bytes),
            *("fits" if row.fits[size] else "-" for size in CARD_GIB),
        ]
        for row in rows
    ]
    return render(
        f"Which models fit in 4 bits, with {context_tokens:,} tokens and 1 GiB for the rest", header, body
    )
