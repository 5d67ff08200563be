"""The memory-efficient attention kernel, which only a card's build of torch has, with what it refuses.

``aten::_efficient_attention_forward``. Rules, shapes and their order: torch's
aten/src/ATen/native/transformers/cuda/attention.cu and mem_eff_attention/ (kernel_forward.h,
kernels/cutlassF.h, gemm_kernel_utils.h; the headers are in torch's wheel); sums are in 32 bits, as there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch

from tests.pretend_card.extension import card
from tests.pretend_card.flash_attention import by_softmax

Tensor = torch.Tensor
_HALF = (torch.float16, torch.bfloat16)
_LINE = 32  # queries in a line of the log-sum-exp, whose rest is +inf
_IN_REGISTERS = 128  # widths up to it need no second copy of the output, in 32 bits
_BLOCKS = 65_535  # of a grid's second and third dimension
_FROM_TOP_LEFT, _FROM_BOTTOM_RIGHT = 1, 2
_library = torch.library.Library("aten", "IMPL")


def register() -> None:
    """Give the card this kernel."""
    _library.impl("_efficient_attention_forward", efficient_forward, "CUDA")


def efficient_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    *,
    scale: float | None = None,
    seqlen_k: Tensor | None = None,
    window_size: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int]:
    """Queries (1, T, H, D), keys (1, S, H, D) and values (1, S, H, E) of sequences laid end to end. Returns
    the output (1, T, H, E), the log-sum-exp in float32 (sequences, H, ``max_seqlen_q`` rounded up to 32), two
    numbers that are for dropout, and both lengths.
    """
    if bias is not None or dropout_p or window_size or not compute_log_sumexp or cu_seqlens_q is None:
        raise NotImplementedError("pretended card: rows of different lengths with their log-sum-exp only")
    _require_shapes(query, key, value)
    if cu_seqlens_k is None:
        raise RuntimeError("Expected seqstart_q.has_value() == seqstart_k.has_value() to be true")
    _require_bounds(query, cu_seqlens_q, cu_seqlens_k, max_seqlen_q)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        _require_dense(name, tensor)
    kernel = _kernel_for(query, key, value)
    if seqlen_k is not None:
        _require_dense("seqlen_k.value()", seqlen_k)
        _require(seqlen_k.dtype == torch.int32, "Expected seqlen_k->scalar_type() == at::ScalarType::Int")
    _require_addresses(query, key, kernel)
    _require(0 <= custom_mask_type <= _FROM_BOTTOM_RIGHT, "invalid value for `custom_mask_type`")
    assert max_seqlen_q is not None
    lengths = [cu_seqlens_q, cu_seqlens_k, *([] if seqlen_k is None else [seqlen_k])]
    known = scale if scale is not None else 1 / math.sqrt(query.shape[-1])
    out, lse = _launched(query, key, value, lengths, max_seqlen_q, custom_mask_type, known)
    where = query.device if torch.cuda.is_current_stream_capturing() else "cpu"
    unused = torch.empty((), dtype=torch.long, device=where)
    return out, lse, unused, torch.empty_like(unused), max_seqlen_q, max_seqlen_k or 0


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def _require_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        _require(tensor.dim() == 4, f"Expected {name}.dim() == 4 to be true, but got false.")
    same = "Expected {} to be true, but got false."
    _require(len(query) == len(key) == len(value), same.format("query.size(0) == key.size(0)"))
    _require(key.shape[1] == value.shape[1], same.format("key.size(1) == value.size(1)"))
    _require(query.shape[2] == key.shape[2], same.format("query.size(2) == key.size(2)"))
    _require(query.shape[2] == value.shape[2], same.format("query.size(2) == value.size(2)"))
    _require(query.shape[3] == key.shape[3], same.format("query.size(3) == key.size(3)"))


def _require_bounds(query: Tensor, begins_q: Tensor, begins_k: Tensor, max_seqlen_q: int | None) -> None:
    for name, tensor in (("seqstart_q", begins_q), ("seqstart_k", begins_k)):
        _require(tensor.dtype == torch.int32, f"Expected {name}->scalar_type() == at::ScalarType::Int")
        _require(tensor.dim() == 1, f"Expected {name}->dim() == 1 to be true, but got false.")
        _require(tensor.is_cuda, f"(*{name}) must be a CUDA tensor")
        _require(tensor.is_contiguous(), f"Expected (*{name}).is_contiguous() to be true, but got false.")
    _require(begins_q.shape == begins_k.shape, "Expected seqstart_q->size(0) == seqstart_k->size(0)")
    _require(len(query) == 1, "cu_seqlen only supports batch_size=1")
    _require(max_seqlen_q is not None, "Expected max_seqlen_q_.has_value() to be true, but got false.")


def _require_dense(name: str, tensor: Tensor) -> None:
    _require(tensor.is_cuda, f"{name} must be a CUDA tensor")
    _require(tensor.stride(-1) == 1 or tensor.shape[-1] == 1, f"{name}: last dimension must be contiguous")


@dataclass(frozen=True)
class _Kernel:
    """One of those in the library: how many numbers of query and keys it loads at once."""

    alignment: int


def _kernels(dtype: torch.dtype, capability: tuple[int, int]) -> list[_Kernel]:
    """Those for a type and a generation, best first (kernels/cutlassF.h). Only generations before 8.0 have
    one for memory that is less aligned than loads of 128 bits are; without tensor cores loads are single.
    """
    if dtype not in (*_HALF, torch.float32):
        raise RuntimeError("Only fp32, half & bf16 supported at the moment")
    if not (5, 0) <= capability <= (12, 1) or (dtype == torch.bfloat16 and capability < (8, 0)):
        return []
    tensor_cores = capability >= ((7, 0) if dtype == torch.float16 else (8, 0))
    aligned = _Kernel(128 // (8 * dtype.itemsize) if tensor_cores else 1)
    if capability >= (8, 0):
        return [aligned]
    least = (4 if capability >= (7, 5) else 2) if tensor_cores else 1
    return [aligned, _Kernel(least)]


def _kernel_for(query: Tensor, key: Tensor, value: Tensor) -> _Kernel:
    """The first that knows the type, the card and the strides of heads; each takes heads of any width."""
    for kernel in _kernels(query.dtype, torch.cuda.get_device_capability(query.device)):
        if query.stride(2) % kernel.alignment == 0 == key.stride(2) % kernel.alignment:
            break
    else:
        raise RuntimeError("cutlassF: no kernel found to launch!")
    if not key.dtype == value.dtype == query.dtype:
        raise RuntimeError(
            "pretended card: keys of another type; the kernel would take their bits for its own"
        )
    return kernel


def _require_addresses(query: Tensor, key: Tensor, kernel: _Kernel) -> None:
    """What is told of addresses and strides of tokens; loads wider than a number are refused by the card."""
    for name, tensor in (("query", query), ("key", key)):
        pointer = tensor.data_ptr()
        _require(pointer % kernel.alignment == 0, f"p.{name}_ptr is not correctly aligned")
        _require(tensor.stride(1) < 2**31, f"{name}.stride(1) overflows")
        _require(tensor.stride(1) % kernel.alignment == 0, f"{name} is not correctly aligned (strideM)")
        if pointer % (kernel.alignment * tensor.itemsize):
            raise torch.AcceleratorError("CUDA error: misaligned address")


def _launched(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[Tensor],
    longest: int,
    mask: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    _, total, heads, _ = query.shape
    sequences, width, device = len(lengths[0]) - 1, value.shape[-1], query.device
    out = torch.empty((1, total, heads, width), dtype=query.dtype, device=device)
    room = -(-longest // _LINE) * _LINE
    lse = torch.empty((sequences, heads, room), dtype=torch.float32, device=device)
    if query.dtype in _HALF and max(width, query.shape[-1]) > _IN_REGISTERS:
        torch.empty(out.shape, dtype=torch.float32, device=device)  # what it adds up in, while it runs
    if 0 in (sequences, heads, longest, key.shape[1]):
        return out.zero_(), lse
    if max(sequences, heads) > _BLOCKS:
        raise torch.AcceleratorError("CUDA error: invalid configuration argument")

    def work(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> None:
        *lengths, out, lse = more
        for row, (rows, columns) in enumerate(_places(lengths, k.shape[1], longest)):
            count = rows.stop - rows.start
            seen = _mask(mask, count, columns.stop - columns.start)
            found = by_softmax(q[0, rows], k[0, columns], v[0, columns], scale, seen)
            out[0, rows], lse[row, :, :count] = found
            lse[row, :, count : -(-count // _LINE) * _LINE] = math.inf

    def measure(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[float, float]:
        *lengths, out, lse = more
        keys = sum(columns.stop - columns.start for _, columns in _places(lengths, k.shape[1], longest))
        each = heads * (k.shape[-1] + v.shape[-1]) * k.element_size()
        return q.nbytes + keys * each, out.nbytes + lse.nbytes

    given = [query, key, value, *lengths]
    card.kernel(device.index, "efficient_attention::fwd", given, [out, lse], work, measure=measure)
    return out, lse


def _mask(kind: int, queries: int, keys: int) -> Tensor | None:
    if not kind:
        return None
    first = keys - queries if kind == _FROM_BOTTOM_RIGHT else 0
    return torch.arange(keys)[None, :] <= first + torch.arange(queries)[:, None]


def _places(lengths: list[Tensor], total_keys: int, longest: int) -> list[tuple[slice, slice]]:
    """Of each sequence: its queries and its keys, which begin where the bounds say; how many there are, too,
    unless there are counts.
    """
    begins_q, begins_k, *used = (tensor.tolist() for tensor in lengths)
    found = []
    for row, (begin, end) in enumerate(pairwise(begins_q)):
        count = used[0][row] if used else begins_k[row + 1] - begins_k[row]
        keys = slice(begins_k[row], begins_k[row] + count)
        if keys.start < 0 or keys.stop > total_keys:
            raise torch.AcceleratorError(
                f"CUDA error: an illegal memory access was encountered (keys {keys} of {total_keys})"
            )
        if end - begin > longest:
            raise RuntimeError(
                f"pretended card: {end - begin} queries are more than max_seqlen_q {longest}; the kernel "
                "would leave the rest out without a word"
            )
        found.append((slice(begin, end), keys))
    return found
