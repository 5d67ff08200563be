"""Stands in for ``bitsandbytes.backends.cuda.ops``: the same operators and refusals, by the CPU's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.pretend_card.extension import card
from tests.pretend_card.options import options_of

_DRY_ABOVE = 1 << 16  # numbers in a tensor from which on it is only followed
Check = Callable[..., None]
Change = Callable[..., torch.Tensor]


def register_kernels() -> None:
    """Register every operator that 4-bit and 8-bit weights need."""
    for name in ("quantize_4bit", "quantize_blockwise", "gemv_4bit", "int8_linear_matmul"):
        _register(name)
    for name in ("dequantize_4bit", "dequantize_blockwise"):
        _register(name)
        _register_out(name)
    _register("gemm_4bit", check=_same_types)
    _register("int8_mm_dequant", change=_through_half)
    _register("int8_vectorwise_quant", check=_half_only)


def _register(name: str, check: Check | None = None, change: Change | None = None) -> None:
    from bitsandbytes._ops import register_kernel

    operator = getattr(torch.ops.bitsandbytes, name).default

    @register_kernel(f"bitsandbytes::{name}", "cuda")
    def _(*args: Any, **kwargs: Any) -> Any:
        if check:
            check(*args, **kwargs)
        device = _launched(f"bitsandbytes::{name}", args)
        if _only_followed(args):
            return _each(lambda t: _empty_like(t, device), operator(*map(_meta, args), **_all(_meta, kwargs)))
        found = operator(*map(_near, args), **_all(_near, kwargs))
        if change:
            found = change(found, *args, **kwargs)
        return _each(lambda tensor: card.card_copy(tensor.contiguous(), device.index), found)


def _register_out(name: str) -> None:
    """The overload that fills a tensor that is there; the CPU has none of these."""
    from bitsandbytes._ops import register_kernel

    operator = getattr(torch.ops.bitsandbytes, name).default

    @register_kernel(f"bitsandbytes::{name}.out", "cuda")
    def _(*args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> None:
        if out is None:
            *args, out = args  # type: ignore[assignment]
        _launched(f"bitsandbytes::{name}.out", args)
        if _only_followed(args):
            return
        found = operator(*map(_near, args), **_all(_near, kwargs))
        if out.shape != found.shape or out.dtype != found.dtype or not out.is_contiguous():
            raise ValueError(
                f"Expected out {tuple(found.shape)} {found.dtype}, got {tuple(out.shape)} {out.dtype}"
            )
        _near(out).copy_(found)


def _launched(name: str, args: Any) -> torch.device:
    device: torch.device = next(a for a in args if isinstance(a, torch.Tensor)).device
    card.launch(device.index, name)
    return device


def _only_followed(args: Any) -> bool:
    largest = max(a.numel() for a in args if isinstance(a, torch.Tensor))
    return options_of().dry and largest > _DRY_ABOVE


def _near(value: Any) -> Any:
    """The CPU's view of a tensor on the card. What is not there is a pointer that a kernel cannot follow."""
    if not isinstance(value, torch.Tensor):
        return value
    if not value.is_cuda:
        raise torch.AcceleratorError(
            "CUDA error: an illegal memory access was encountered (bitsandbytes was given a host pointer)"
        )
    return card.host_view(value)


def _meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _empty_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def _all(work: Callable[[Any], Any], named: dict[str, Any]) -> dict[str, Any]:
    return {name: work(value) for name, value in named.items()}


def _each(work: Callable[[torch.Tensor], torch.Tensor], found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(None if tensor is None else work(tensor) for tensor in found)
    return None if found is None else work(found)


def _half_only(values: torch.Tensor, *_: Any, **__: Any) -> None:
    if values.dtype != torch.float16:
        raise ValueError(f"A must be float16, got {values.dtype}")


def _through_half(
    found: torch.Tensor, _values: Any, _rows: Any, _columns: Any, dtype: Any = None, bias: Any = None
) -> torch.Tensor:
    return found.to(torch.float16).to(dtype or torch.float16)


def _same_types(
    values: torch.Tensor,
    _weight: Any,
    _shape: Any,
    absmax: torch.Tensor,
    _blocksize: Any,
    _quant_type: Any,
    bias: torch.Tensor | None = None,
    *_: Any,
    **__: Any,
) -> None:
    if absmax.dtype != torch.float32:
        raise RuntimeError(f"absmax must be float32, got {absmax.dtype}")
    if bias is not None and bias.dtype != values.dtype:
        raise RuntimeError(f"bias dtype ({bias.dtype}) must match A dtype ({values.dtype})")
