"""The attention operators that only a card's build of torch has, with what they refuse.

``torch.nn.attention.varlen.varlen_attn`` is torch's own code over ``aten::_flash_attention_forward``, which
is here. Rules, shapes and the order of the checks: torch's
aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (``mha_fwd``, ``mha_varlen_fwd``,
``num_splits_heuristic``) and attention.cu; sums are in 32 bits, as there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from tests.pretend_card.extension import card

Tensor = torch.Tensor
_HALF = (torch.float16, torch.bfloat16)
_library = torch.library.Library("aten", "IMPL")
_NO_PAGES = (
    "block_table is not supported by flash attention 2; activate flash attention 3 (capability 9.0) or "
    "4 (10.x) (github.com/pytorch/pytorch/pull/175924)"
)


def register() -> None:
    """Give the card these kernels."""
    _library.impl("_flash_attention_forward", flash_forward, "CUDA")
    _library.impl("_flash_attention_forward_no_dropout_inplace", _flash_forward_into, "CUDA")


@dataclass(frozen=True)
class Window:
    """How far a query sees, in keys: ``left`` behind and ``right`` before its own place; -1 is no limit.
    Places are counted from the end: the last query stands at the last key.
    """

    left: int = -1
    right: int = -1

    def mask(self, queries: int, keys: int) -> Tensor | None:
        """What is seen, (queries, keys); None if all is."""
        if self.left < 0 and self.right < 0:
            return None
        apart = torch.arange(keys)[None, :] - torch.arange(queries)[:, None] - (keys - queries)
        seen = torch.ones_like(apart, dtype=torch.bool)
        if self.left >= 0:
            seen &= apart >= -self.left
        if self.right >= 0:
            seen &= apart <= self.right
        return seen


@dataclass(frozen=True)
class Shape:
    """What the kernel is told beside the tensors."""

    longest_queries: int
    longest_keys: int
    window: Window
    scale: float


def flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``aten::_flash_attention_forward``, flash attention 2. Queries (T, H, D), keys and values (S, G, D)
    with ``cum_seq_*``, else (B, T, H, D) and (B, S, G, D). Returns the output like the queries, the
    log-sum-exp in float32 as (H, T) or (B, H, T), and three tensors that are only for dropout.
    """
    if dropout_p or alibi_slopes is not None or return_debug_mask:
        raise NotImplementedError("pretended card: no dropout and no slopes here")
    if (cum_seq_q is None) != (cum_seq_k is None):
        raise RuntimeError(
            "cumulative_sequence_length_q and cumulative_sequence_length_k must be both set or not"
        )
    if block_table is not None:
        raise RuntimeError(_NO_PAGES)
    _require_types(query, key, value)
    left = -1 if window_size_left is None else window_size_left
    right = -1 if window_size_right is None else window_size_right
    known = scale if scale is not None else 1 / math.sqrt(query.shape[-1])
    if is_causal and max_q > 1:
        right = 0
    shape = Shape(max_q, max_k, Window(-1 if left >= max_k else left, -1 if right >= max_k else right), known)
    if cum_seq_q is None or cum_seq_k is None:
        out, lse = _dense(query, key, value, shape)
    else:
        _require_lengths(query, key, value, cum_seq_q, cum_seq_k, seqused_k)
        out, lse = _ragged(query, key, value, cum_seq_q, cum_seq_k, seqused_k, shape, num_splits or 0)
    state = torch.empty(2, dtype=torch.uint64, device=query.device)
    unused = torch.empty((), dtype=torch.uint64, device=query.device)
    return out, lse, state, unused, torch.empty(0, dtype=query.dtype, device=query.device)


def _flash_forward_into(out: Tensor, query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    found, lse, *_ = flash_forward(query, *args, **kwargs)
    if out.dtype != query.dtype:
        raise RuntimeError("Output must have the same dtype as inputs")
    if out.shape != query.shape:
        raise RuntimeError("out must have shape (sizes[0], sizes[1], head_size_og)")
    card.kernel(out.device.index, "flash_attn::into", [found], [out], lambda found, out: out.copy_(found))
    return lse


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def _require_types(query: Tensor, key: Tensor, value: Tensor) -> None:
    major, _ = torch.cuda.get_device_capability(query.device)
    width = query.shape[-1]
    _require(major >= 8, "FlashAttention only supports Ampere GPUs or newer.")
    _require(query.dtype in _HALF, "FlashAttention only support fp16 and bf16 data type")
    _require(key.dtype == query.dtype, "query and key must have the same dtype")
    _require(value.dtype == query.dtype, "query and value must have the same dtype")
    for name, tensor in (("q", query), ("k", key), ("v", value)):
        _require(tensor.is_cuda, f"{name} must be on CUDA")
        _require(tensor.stride(-1) == 1, "Input tensor must have contiguous last dimension")
    _require(width <= 256, "FlashAttention forward only supports head dimension at most 256")
    _require(
        query.shape[-2] % key.shape[-2] == 0,
        "Number of heads in key/value must divide number of heads in query",
    )
    _require(width % 8 == 0, "head_size must be a multiple of 8, this is ensured by padding!")


def _require_lengths(
    query: Tensor, key: Tensor, value: Tensor, cum_seq_q: Tensor, cum_seq_k: Tensor, seqused_k: Tensor | None
) -> None:
    batch = cum_seq_q.numel() - 1
    named = {"cu_seqlens_q": cum_seq_q, "cu_seqlens_k": cum_seq_k}
    for name, tensor in named.items() if seqused_k is None else {**named, "seqused_k": seqused_k}.items():
        _require(tensor.dtype == torch.int32, f"{name} must have dtype int32")
        _require(tensor.is_cuda, f"{name} must be on CUDA")
        _require(tensor.is_contiguous(), f"{name} must be contiguous")
    _require(batch > 0, "batch size must be positive")
    _require(query.dim() == 3, "q must have shape (total_q, num_heads, head_size_og)")
    for name, tensor in (("k", key), ("v", value)):
        like = (key.shape[0], key.shape[1], query.shape[2])
        _require(tuple(tensor.shape) == like, f"{name} must have shape (total_k, num_heads_k, head_size_og)")
    _require(cum_seq_k.shape == (batch + 1,), "cu_seqlens_k must have shape (batch_size + 1)")
    _require(seqused_k is None or seqused_k.shape == (batch,), "seqused_k must have shape (batch_size)")


def _dense(query: Tensor, key: Tensor, value: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    batch, queries, heads, _ = query.shape
    out = torch.empty_like(query)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=query.device)

    def work(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> None:
        for row in range(batch):
            out[row], lse[row] = attention(q[row], k[row], v[row], shape)

    card.kernel(query.device.index, "flash_attn::fwd", [query, key, value], [out, lse], work)
    return out, lse


def _ragged(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    seqused_k: Tensor | None,
    shape: Shape,
    num_splits: int,
) -> tuple[Tensor, Tensor]:
    """One query a sequence and grouped heads without a window: heads of a group become queries, in copies of
    query and output, and keys may be split among the card's multiprocessors (and then joined by another
    kernel).
    """
    batch, groups = cum_seq_q.numel() - 1, query.shape[1] // key.shape[1]
    swaps = shape.longest_queries == 1 and groups > 1 and shape.window == Window()
    if not swaps:
        return _ragged_kernel(query, key, value, cum_seq_q, cum_seq_k, seqused_k, shape)
    heads, width = key.shape[1], query.shape[2]
    swapped = query.reshape(batch, heads, groups, width).transpose(1, 2).reshape(batch * groups, heads, width)
    splits = num_splits or splits_of(query.device, batch * heads, -(-groups // 64), width, shape.longest_keys)
    accumulated = torch.empty(
        (splits if splits > 1 else 0, batch, heads, groups, -(-width // 32) * 32),
        dtype=torch.float32,
        device=query.device,
    )
    out, lse = _ragged_kernel(query, key, value, cum_seq_q, cum_seq_k, seqused_k, shape, like=swapped)
    if splits > 1:
        card.kernel(query.device.index, "flash_attn::combine", [accumulated], [], lambda *_: None)
    return out, lse


def splits_of(device: torch.device, heads: int, query_blocks: int, width: int, longest_keys: int) -> int:
    """Into how many parts the keys are split: the fewest that reach 85 % of the best use of the
    multiprocessors (``num_splits_heuristic``).
    """
    places = 2 * torch.cuda.get_device_properties(device).multi_processor_count
    blocks = -(-longest_keys // (256 if width <= 64 else 128 if width <= 128 else 64))
    busy = heads * query_blocks
    if busy >= 0.8 * places:
        return 1
    use = {}
    for splits in range(1, min(128, places, blocks) + 1):
        if splits == 1 or -(-blocks // splits) != -(-blocks // (splits - 1)):
            waves = busy * splits / places
            use[splits] = waves / math.ceil(waves)
    return next((splits for splits, part in use.items() if part >= 0.85 * max(use.values())), 1)


def _ragged_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    seqused_k: Tensor | None,
    shape: Shape,
    like: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``like``: what the kernel itself writes where heads have been swapped; a copy brings it back."""
    total, heads, _ = query.shape
    out = torch.empty_like(query)
    lse = torch.empty((heads, total), dtype=torch.float32, device=query.device)
    lengths = [cum_seq_q, cum_seq_k] + ([] if seqused_k is None else [seqused_k])

    def work(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> None:
        *lengths, out, lse = more
        for rows, columns in _places(lengths, k.shape[0], shape):
            out[rows], lse[:, rows] = attention(q[rows], k[columns], v[columns], shape)

    def measure(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[float, float]:
        *lengths, out, lse = more
        keys = sum(columns.stop - columns.start for _, columns in _places(lengths, k.shape[0], shape))
        each = (k.shape[1] * k.shape[2] + v.shape[1] * v.shape[2]) * k.element_size()
        return q.nbytes + keys * each, out.nbytes + lse.nbytes

    index = query.device.index
    given = [query, key, value, *lengths]
    card.kernel(index, "flash_attn::varlen_fwd", given, [out, lse], work, measure=measure)
    if like is not None:
        swapped = torch.empty_like(like)
        card.kernel(index, "copy on the card", [out], [swapped], lambda *_: None)
    return out, lse


def _places(lengths: list[Tensor], total_keys: int, shape: Shape) -> list[tuple[slice, slice]]:
    """Of each sequence: its queries and its keys. ``cum_seq_k`` says where keys begin; how many there are, as
    well, unless ``seqused_k`` says it.
    """
    begins_q, begins_k, *used = (tensor.tolist() for tensor in lengths)
    found = []
    for row in range(len(begins_q) - 1):
        queries = slice(begins_q[row], begins_q[row + 1])
        count = used[0][row] if used else begins_k[row + 1] - begins_k[row]
        keys = slice(begins_k[row], begins_k[row] + count)
        if keys.start < 0 or keys.stop > total_keys:
            raise torch.AcceleratorError(
                f"CUDA error: an illegal memory access was encountered (keys {keys} of {total_keys})"
            )
        if queries.stop - queries.start > shape.longest_queries or count > shape.longest_keys:
            raise RuntimeError(
                f"pretended card: {queries} and {keys} are longer than max_q {shape.longest_queries} and "
                f"max_k {shape.longest_keys}; the kernel would leave the rest out without a word"
            )
        found.append((queries, keys))
    return found


def attention(query: Tensor, key: Tensor, value: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """One sequence: (n, H, D), (m, G, D), (m, G, D) to the output (n, H, D) and the log-sum-exp (H, n), which
    is +inf where nothing is seen (flash_fwd_kernel.h), with an output of zeros.
    """
    out, lse = by_softmax(query, key, value, shape.scale, shape.window.mask(len(query), len(key)))
    return out, torch.where(lse == -math.inf, math.inf, lse)


def by_softmax(
    query: Tensor, key: Tensor, value: Tensor, scale: float, seen: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same, of the keys that are ``seen`` (n, m), all of them for None; -inf where that is none."""
    queries, heads, width = query.shape
    keys, groups, _ = key.shape
    q = query.float().view(queries, groups, heads // groups, width)
    scores = torch.einsum("ngrd,mgd->grnm", q, key.float()) * scale
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(scores, -1) if keys else scores.new_full(scores.shape[:-1], -math.inf)
    weights = torch.exp(scores - lse.unsqueeze(-1).nan_to_num(neginf=0.0))
    out = torch.einsum("grnm,mgd->ngrd", weights, value.float()).reshape(queries, heads, value.shape[-1])
    return out.to(query.dtype), lse.reshape(heads, queries)
