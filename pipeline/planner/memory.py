"""The most memory that a night holds at once: weights, the pages of rows under way, a pass, and the process
around them.

Measured with the demo model on Linux (float32, two threads, passes of 256 to 1,024 tokens): a worker's
resident memory is 429 MiB after its imports, 40 to 60 MiB more once the model has run, and grows with a pass
by 5 to 6 times the tensors that are alive at its fullest moment, because the C library keeps what was freed
in pieces. A card's allocator keeps what is alive; passes of 4,096 tokens were followed on a pretended card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.planner.model.layers import dtype_bytes
from pipeline.planner.model.shape import ModelShape
from pipeline.system.graphics_cards import CONTEXT_BYTES

# Of a worker process: resident after its imports where that was not measured here, and what libraries add
# when a model first runs.
PROCESS_BYTES, LIBRARY_BYTES = 430 * 2**20, 50 * 2**20
# Of a card before anything is loaded: the context, and the workspace of the computing stream's matrix
# products, 8 MiB before capability 9.0 and 32 from it on (torch, aten/src/ATen/cuda/CublasHandlePool.cpp).
CARD_FIXED_BYTES = CONTEXT_BYTES + 32 * 2**20
# On a card: what is too small to be counted, a table of positions or the scales of a weight.
HEAP_FACTOR, STREAMED_FACTOR, CARD_FACTOR = 5.5, 2.0, 1.05
# Of activations of a card, what its allocator keeps beside them in pieces into which nothing fits: 0.33 to
# 0.58 in dry nights.
_PIECES_SHARE = 0.5
# From this size on a card's allocator gives a weight a place of its own, rounded up (torch,
# c10/cuda/CUDACachingAllocator.cpp).
LARGE_BYTES, _ROUNDED_BYTES = 10 * 2**20, 2 * 2**20
_BITS = {"nf4": 4, "int8": 8}
_PAGE_TOKENS = 16  # of KV memory, as the engine gives it out
# Of a number of the logits, which are in float32.
_LOGITS_BYTES = 4
# Weights that are read at once, each by a thread of the library, before they are shrunk.
_READ_AT_ONCE = 4
# What shrinking them takes beside: 20 MiB on an idle machine, up to 80 where other work keeps the processor
# busy.
_SHRINKING_BYTES = 64 * 2**20
# What a processor's worker holds beyond everything that is reckoned once its weights are laid out: 75 MiB in
# three runs of the demo model, none of them torch's own.
LAYING_OUT_BYTES = 64 * 2**20
# Weights of linear layers, where they are not quantized: processors multiply by a layout of their own.
_LAID_OUT = ("attention", "recurrent", "mlp", "head")
# The most positions whose logits were seen to cost no copy of the head.
_PLAIN_LOGITS = 16


def paged_tokens(tokens: int) -> int:
    """Tokens of the pages that a row of ``tokens`` gets."""
    return -(-tokens // _PAGE_TOKENS) * _PAGE_TOKENS


def rows_bytes(shape: ModelShape, dtype: str, rows: int, row_tokens: Sequence[int], requests: int) -> int:
    """Of the rows under way at the fullest moment: the longest come first, so these are the ``rows`` longest
    of all ``requests``.

    ``row_tokens`` is a sample of lengths; each stands for ``requests`` / sample rows.
    """
    if not row_tokens or rows < 1:
        return 0
    left, each = min(rows, max(1, requests)), max(1, requests // len(row_tokens))
    wanted: Counter[int] = Counter()
    for tokens in sorted(row_tokens, reverse=True):
        taken = min(left, each)
        if tokens:
            wanted[paged_tokens(tokens)] += taken
        left -= taken
        if not left:
            break
    return sum(count * shape.kv_bytes(size, dtype) for size, count in wanted.items())


@dataclass(frozen=True, slots=True)
class FileBytes:
    """Weights as they lie on the disk: how many bytes, and whether in the numbers that are computed with."""

    stored_bytes: int
    same_numbers: bool


def stored(shape: ModelShape, stored_dtype: str | None, dtype: str) -> FileBytes:
    """Of an unquantized checkpoint; numbers of a kind that is not named are taken for 16 bits."""
    kept = stored_dtype if stored_dtype in ("float32", "bfloat16", "float16") else "bfloat16"
    return FileBytes(shape.parameters * dtype_bytes(kept), kept == dtype)


def mapped_bytes(shape: ModelShape, files: FileBytes, quantization: str, dtype: str, working: bool) -> int:
    """Pages of the weight files that count as resident beside the weights. The system takes them back when
    memory is short.

    Files are mapped while they are read; embeddings in the same numbers are then used where they lie, and
    keep the whole file mapped. Other weights are quantized, or laid out anew for a processor's products.
    """
    if not files.same_numbers:
        return 0 if working else files.stored_bytes
    used_there = sum(
        weight.stored_bytes(quantization, dtype)
        for weight in shape.weights
        if not (weight.shrinks or weight.module in _LAID_OUT)
    )
    return max(0, files.stored_bytes - used_there)


def streamed_pass_bytes(
    shape: ModelShape, dtype: str, tokens: int, rows: int, past_tokens: int, on_card: bool
) -> int:
    """Of one micro-batch of streamed weights, where large blocks are given back as they are freed."""
    if not on_card:
        return int(shape.activation_bytes(tokens, dtype, rows, 0) * STREAMED_FACTOR)
    return with_pieces(activations_bytes(shape, dtype, tokens, rows, past_tokens, on_card))


def arriving_bytes(largest_bytes: int) -> int:
    """Weights in full numbers while they are read and shrunk. ``largest_bytes``: of the largest of them."""
    return _READ_AT_ONCE * largest_bytes + _SHRINKING_BYTES if largest_bytes else 0


def head_copy_bytes(shape: ModelShape, dtype: str, logits: int, on_card: bool) -> int:
    """What multiplying ``logits`` positions by the output head costs a processor beside the head: it is laid
    out for products when it is loaded, and stays as it was where it is the embedding, too. Where that does
    not pay, a library lays it out in every pass of more than a few positions.

    Fits what label runs of the demo model held beyond the rest: 108 MiB, the size of its head.
    """
    if on_card or not (shape.tied or logits > _PLAIN_LOGITS):
        return 0
    return shape.vocabulary * shape.hidden * dtype_bytes(dtype)


def activations_bytes(
    shape: ModelShape,
    dtype: str,
    chunk_tokens: int,
    rows: int,
    past_tokens: int,
    on_card: bool,
    unpacks: bool = False,
) -> int:
    """Of one pass: on a processor as its heap holds them, on a card those that are alive at the fullest
    moment. ``unpacks``: weights in 4 bits become plain numbers on the way, one at a time.
    """
    if not on_card:
        return int(shape.activation_bytes(chunk_tokens, dtype, rows, past_tokens) * HEAP_FACTOR)
    live = shape.activation_bytes(chunk_tokens, dtype, rows, past_tokens)
    if unpacks:
        live = max(live, shape.unpacking_bytes(chunk_tokens, dtype, rows, past_tokens))
    return int(live * CARD_FACTOR) + shape.scores_bytes(chunk_tokens, dtype, rows, past_tokens)


def with_pieces(activation_bytes: int) -> int:
    """What a card's allocator holds for activations of so many bytes: them, and pieces between them."""
    return int(activation_bytes * (1 + _PIECES_SHARE))


def weight_pieces_bytes(shape: ModelShape, quantization: str) -> int:
    """What a card's allocator holds for weights beyond their bytes: large ones are rounded up, others lie
    side by side (torch, c10/cuda/CUDACachingAllocator.cpp). Their scales are small.
    """
    found = 0
    for weight in shape.weights:
        bits = _BITS.get(quantization, 16) if weight.shrinks else 16
        size = weight.rows * weight.columns * bits // 8
        found += weight.copies * (-size % _ROUNDED_BYTES) if size >= LARGE_BYTES else 0
    return found


def logits_bytes(shape: ModelShape, positions: int) -> int:
    """Of so many positions, in float32."""
    return positions * shape.vocabulary * _LOGITS_BYTES


def positions_within(shape: ModelShape, dtype: str, free_bytes: int) -> int:
    """The most positions whose logits take ``free_bytes`` where they are computed: in ``dtype`` and in
    float32 at once.
    """
    copied = 0 if dtype == "float32" else dtype_bytes(dtype)
    return free_bytes // (shape.vocabulary * (_LOGITS_BYTES + copied))


def pool_bytes(shape: ModelShape, dtype: str, rows: int, batch_tokens: int) -> int:
    """What is allocated on a card for the keys and values of all rows together: every token in every layer, a
    page for nobody; and the states that rows keep.
    """
    pages = batch_tokens * shape.kv_bytes_per_token(dtype)
    return pages + page_bytes(shape, dtype) + rows * shape.fixed_bytes_per_row(dtype)


def page_bytes(shape: ModelShape, dtype: str) -> int:
    """Of one page, in all layers."""
    return _PAGE_TOKENS * shape.kv_bytes_per_token(dtype)
