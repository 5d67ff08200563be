"""Weights in 4 bits to plain numbers, into storage that is used again: the same bits as bitsandbytes gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pipeline.engine.quiet import import_bitsandbytes

_STRETCH = 2**19  # packed bytes at once: their 4 MiB of numbers stay in a cache of the processor between two passes over them


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
    elif out.dtype != torch.float32 or state.blocksize % 2 or out.shape[-1] % 2 or out.numel() % state.blocksize:
        out.copy_(functional.dequantize_4bit(packed, state))
    else:
        scales = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset if state.nested else state.absmax
        _look_up(packed.reshape(-1), scales.float(), state.code.float(), int(state.blocksize), out)


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
