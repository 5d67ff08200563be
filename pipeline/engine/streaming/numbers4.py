"""Weights in 4 bits to plain numbers, into storage that is used again, and back: the same bits as bitsandbytes gives, in little memory.

One exception: bitsandbytes 0.50 on a processor gives wrong numbers for matrices whose rows are no multiple of a block (64) long, such as
64 x 96; its kernel looks for scales row by row where they lie through the whole matrix. Here they are right.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pipeline.engine.quiet import import_bitsandbytes

_STRETCH = 2**19  # packed bytes at once: their 4 MiB of numbers stay in a cache of the processor between two passes over them

_TRIED_SHAPE = (4096, 1024)  # beyond the processor's own caches in plain numbers, and quick


def statistics(tensors: Mapping[str, torch.Tensor], name: str, device: torch.device) -> Any:
    """The library's quantization state of the weight called ``name``, from the tensors stored beside it."""
    prefix = f"{name}."
    parts = {key[len(prefix) :]: tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    described = next(key for key in parts if key.startswith("quant_state"))
    parts[described] = parts[described].cpu()
    return import_bitsandbytes().functional.QuantState.from_dict(parts, device)


def dequantize(packed: torch.Tensor, state: Any, out: torch.Tensor) -> None:
    """Fill ``out`` (the weight's shape, in its dtype).

    float32 on a processor: pairs of numbers looked up by the byte, then times the scale of their block, in storage that is there already.
    The library's own kernel, which is used for everything else, takes new memory for each weight.
    """
    functional = import_bitsandbytes().functional
    if out.device.type == "cuda":
        functional.dequantize_4bit(packed, state, out=out)
        return
    block, size = int(state.blocksize), out.numel()
    if out.dtype != torch.float32 and out.shape[-1] % block == 0:
        out.copy_(functional.dequantize_4bit(packed, state))
        return
    scales = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset if state.nested else state.absmax
    whole = out.dtype == torch.float32 and size % block == 0
    plain = out if whole else torch.empty(-(-size // block) * block)
    bytes_ = packed.reshape(-1)
    padded = torch.nn.functional.pad(bytes_, (0, plain.numel() // 2 - len(bytes_)))
    _look_up(padded, scales.float(), state.code.float(), block, plain)
    if not whole:
        out.copy_(plain[:size].view(out.shape))


def unpacking_rate(dtype: str) -> float | None:
    """Numbers a second that ``dequantize`` gives on this processor, the best of a few; None where a card does it in no time."""
    if torch.cuda.is_available():
        return None
    plain = torch.randn(_TRIED_SHAPE, generator=torch.Generator().manual_seed(1))
    packed, state = import_bitsandbytes().functional.quantize_4bit(plain, quant_type="nf4", compress_statistics=True)
    out, seconds = torch.empty(_TRIED_SHAPE, dtype=getattr(torch, dtype)), []
    for _ in range(4):
        started = time.perf_counter()
        dequantize(packed, state, out)
        seconds.append(time.perf_counter() - started)
    return out.numel() / min(seconds)


def _look_up(packed: torch.Tensor, scales: torch.Tensor, code: torch.Tensor, block: int, out: torch.Tensor) -> None:
    values = torch.arange(256)
    pairs = torch.stack([code[values >> 4], code[values & 15]], dim=1).contiguous().view(torch.float64)[:, 0].contiguous()
    flat = out.reshape(-1)
    stretch = max(block // 2, _STRETCH // (block // 2) * (block // 2))
    for begin in range(0, len(packed), stretch):
        piece = packed[begin : begin + stretch]
        into = flat[2 * begin : 2 * (begin + len(piece))]
        torch.index_select(pairs, 0, piece.int(), out=into.view(torch.float64))
        first = 2 * begin // block
        into.view(-1, block).mul_(scales[first : first + len(into) // block, None])


@contextlib.contextmanager
def quantizing_in_pieces(values: int = 2**20) -> Iterator[None]:
    """Inside, bitsandbytes quantizes to 4 bits so many values at a time on a processor, where it takes many times the matrix at once."""
    functional = import_bitsandbytes().functional
    whole = functional.quantize_4bit

    def in_pieces(matrix: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        settings = dict(zip(("absmax", "out"), args, strict=False)) | kwargs
        block = settings.get("blocksize") or 64
        step = values // block * block
        if matrix.device.type != "cpu" or matrix.numel() <= step or matrix.numel() % block or settings.get("absmax") is not None:
            return whole(matrix, *args, **kwargs)
        flat = matrix.reshape(-1)
        once = {**settings, "compress_statistics": False}
        parts = [whole(flat[begin : begin + step], **once) for begin in range(0, len(flat), step)]
        packed, state = torch.cat([part[0] for part in parts]), parts[0][1]
        state.absmax, state.shape = torch.cat([part[1].absmax for part in parts]), matrix.shape
        if settings.get("compress_statistics"):
            state.offset = state.absmax.mean()
            state.absmax, state.state2 = functional.quantize_blockwise(state.absmax - state.offset, blocksize=256)
            state.nested = True
        return packed, state

    functional.quantize_4bit = in_pieces
    try:
        yield
    finally:
        functional.quantize_4bit = whole
