"""Weights in 4 bits to plain numbers, into storage that is used again, and back: the same bits as
bitsandbytes gives, in little memory.

One exception: bitsandbytes 0.50 on a processor gives wrong numbers for matrices whose rows are no multiple of
a block (64) long, such as 64 x 96; its kernel looks for scales row by row where they lie through the whole
matrix. Here they are right.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from pipeline.engine.model.library_logging import import_bitsandbytes

# packed bytes at once: their 4 MiB of numbers stay in a cache of the processor between two passes over them
_STRETCH = 2**19

_Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], None]

# 200 MB in float32, as a layer in use is in no cache of the processor
_TRIED_SHAPE, _TRIED_MATRICES = (
    (4096, 1024),
    12,
)


def statistics(tensors: Mapping[str, torch.Tensor], name: str, device: torch.device) -> Any:
    """The library's quantization state of the weight called ``name``, from the tensors stored beside it."""
    prefix = f"{name}."
    parts = {key[len(prefix) :]: tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    described = next(key for key in parts if key.startswith("quant_state"))
    parts[described] = parts[described].cpu()
    return import_bitsandbytes().functional.QuantState.from_dict(parts, device)


def dequantize(packed: torch.Tensor, state: Any, out: torch.Tensor) -> None:
    """Fill ``out`` (the weight's shape, in its dtype).

    On a processor the library's function takes new memory for each weight, whose pages cost several times
    what unpacking does; so its kernel is called on storage that is there already. Where that cannot be, pairs
    of numbers are looked up by the byte.
    """
    functional = import_bitsandbytes().functional
    if out.device.type == "cuda":
        functional.dequantize_4bit(packed, state, out=out)
        return
    block, size = int(state.blocksize), out.numel()
    scales = _scales(state)
    kernel = _kernel(out.dtype) if out.shape[-1] % block == 0 else None
    if kernel is not None:
        kernel(packed, scales, out, block)
        return
    whole = out.dtype == torch.float32 and size % block == 0
    plain = out if whole else torch.empty(-(-size // block) * block)
    bytes_ = packed.reshape(-1)
    padded = torch.nn.functional.pad(bytes_, (0, plain.numel() // 2 - len(bytes_)))
    _look_up(padded, scales, state.code.float(), block, plain)
    if not whole:
        out.copy_(plain[:size].view(out.shape))


@dataclass(frozen=True, slots=True)
class Unpacking:
    """One packed weight of a processor, made ready to be unpacked again and again: ``scales`` (blocks,) of
    ``block`` numbers each are float32 already, which takes 4 bytes a block.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    block: int
    kernel: _Kernel

    def into(self, out: torch.Tensor) -> None:
        """Fill ``out`` (the weight's shape): the bits that ``dequantize`` gives."""
        self.kernel(self.packed, self.scales, out, self.block)


def unpacking_of(packed: torch.Tensor, state: Any, dtype: torch.dtype) -> Unpacking | None:
    """``packed`` made ready; None where the library's kernel is not to be called for it."""
    block = int(state.blocksize)
    kernel = _kernel(dtype) if state.quant_type == "nf4" and state.shape[-1] % block == 0 else None
    return None if kernel is None else Unpacking(packed, _scales(state), block, kernel)


def _scales(state: Any) -> torch.Tensor:
    """Float32, one a block."""
    functional = import_bitsandbytes().functional
    scales: torch.Tensor = (
        functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
        if state.nested
        else state.absmax
    )
    return scales.float()


def unpacking_rate(dtype: str) -> float | None:
    """Numbers a second that ``dequantize`` gives on this processor, from one matrix to the next; None where a
    card does it in no time.
    """
    if torch.cuda.is_available():
        return None
    plain = torch.randn(_TRIED_SHAPE, generator=torch.Generator().manual_seed(1))
    packed, state = import_bitsandbytes().functional.quantize_4bit(
        plain, quant_type="nf4", compress_statistics=True
    )
    matrices = [
        (packed.clone(), torch.zeros(_TRIED_SHAPE, dtype=getattr(torch, dtype)))
        for _ in range(_TRIED_MATRICES)
    ]
    dequantize(matrices[0][0], state, matrices[0][1])  # the kernel is found
    started = time.perf_counter()
    for one, out in matrices:
        dequantize(one, state, out)
    return _TRIED_MATRICES * plain.numel() / (time.perf_counter() - started)


_KERNEL_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@cache
def _kernel(dtype: torch.dtype) -> _Kernel | None:
    """The library's kernel for matrices in nf4 on a processor; None where this build has none, or it does not
    give the function's bits.
    """
    from bitsandbytes.cextension import lib

    found = getattr(lib, f"cdequantize_blockwise_cpu_nf4_{_KERNEL_NAMES.get(dtype)}", None)
    # the library hands out functions that raise for names it lacks
    if not isinstance(found, ctypes._CFuncPtr):  # type: ignore[attr-defined]  # noqa: SLF001
        return None

    def kernel(packed: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, block: int) -> None:
        if not (packed.is_contiguous() and scales.is_contiguous() and out.is_contiguous()):
            raise ValueError("a kernel reads and writes rows that lie one behind another")
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (packed, scales, out))
        found(*pointers, *map(ctypes.c_longlong, (block, out.numel() // out.shape[-1], out.shape[-1])))

    functional = import_bitsandbytes().functional
    packed, state = functional.quantize_4bit(torch.linspace(-3, 5, 64 * 128).view(64, 128), quant_type="nf4")
    state.dtype, tried = dtype, torch.empty(64, 128, dtype=dtype)
    kernel(packed, state.absmax, tried, state.blocksize)
    return kernel if torch.equal(tried, functional.dequantize_4bit(packed, state)) else None


def _look_up(
    packed: torch.Tensor, scales: torch.Tensor, code: torch.Tensor, block: int, out: torch.Tensor
) -> None:
    values = torch.arange(256)
    pairs = (
        torch.stack([code[values >> 4], code[values & 15]], dim=1)
        .contiguous()
        .view(torch.float64)[:, 0]
        .contiguous()
    )
    flat = out.reshape(-1)
    stretch = max(block // 2, _STRETCH // (block // 2) * (block // 2))
    for begin in range(0, len(packed), stretch):
        piece = packed[begin : begin + stretch]
        into = flat[2 * begin : 2 * (begin + len(piece))]
        torch.index_select(pairs, 0, piece.int(), out=into.view(torch.float64))
        first = 2 * begin // block
        into.view(-1, block).mul_(scales[first : first + len(into) // block, None])


@contextlib.contextmanager
def quantizing_in_pieces(values: int = 2**18) -> Iterator[None]:
    """Inside, bitsandbytes quantizes to 4 bits so many values at a time on a processor, with the same result.

    It compares every value with all 16 of the code, side by side: a matrix of 46 MB takes 700 MB more while
    it is quantized.
    """
    functional = import_bitsandbytes().functional
    whole = functional.quantize_4bit

    def in_pieces(matrix: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        settings = dict(zip(("absmax", "out"), args, strict=False)) | kwargs
        block = settings.get("blocksize") or 64
        step = values // block * block
        if (
            matrix.device.type != "cpu"
            or matrix.numel() <= step
            or matrix.numel() % block
            or settings.get("absmax") is not None
        ):
            return whole(matrix, *args, **kwargs)
        flat = matrix.reshape(-1)
        once = {**settings, "compress_statistics": False}
        parts = [whole(flat[begin : begin + step], **once) for begin in range(0, len(flat), step)]
        packed, state = torch.cat([part[0] for part in parts]), parts[0][1]
        state.absmax, state.shape = torch.cat([part[1].absmax for part in parts]), matrix.shape
        if settings.get("compress_statistics"):
            state.offset = state.absmax.mean()
            state.absmax, state.state2 = functional.quantize_blockwise(
                state.absmax - state.offset, blocksize=256
            )
            state.nested = True
        return packed, state

    functional.quantize_4bit = in_pieces
    try:
        yield
    finally:
        functional.quantize_4bit = whole
