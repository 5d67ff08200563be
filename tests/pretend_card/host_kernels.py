"""Operators that only a card's build has, or that the CPU has not for every type: computed on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tests.pretend_card.extension import card

_library = torch.library.Library("aten", "IMPL")


def register() -> None:
    """Give the card these kernels."""
    _on_host("histc", _histc)
    _on_host("_conv_depthwise2d", _depthwise(torch.nn.functional.conv2d))
    _on_host("conv_depthwise3d", _depthwise(torch.nn.functional.conv3d))
    _library.impl("_fused_rms_norm", _rms_norm, "CUDA")


def _on_host(name: str, work: Callable[..., torch.Tensor]) -> None:
    """``work`` on the host's views; its shape comes from doing it on tensors without memory."""

    def kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
        given = [a for a in args if isinstance(a, torch.Tensor)]

        def with_tensors(some: Iterable[torch.Tensor]) -> torch.Tensor:
            each = iter(some)
            return work(*(next(each) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)

        like = with_tensors(torch.empty_like(a, device="meta") for a in given)
        out = torch.empty(like.shape, dtype=like.dtype, device=given[0].device)
        card.kernel(
            out.device.index,
            f"aten::{name}",
            given,
            [out],
            lambda *near: near[-1].copy_(with_tensors(near[:-1])),
        )
        return out

    _library.impl(name, kernel, "CUDA")


def _histc(values: torch.Tensor, bins: int = 100, least: float = 0, most: float = 0) -> torch.Tensor:
    if values.is_meta:
        return values.new_empty(bins)
    return torch.histc(values.double(), bins, least, most).to(values.dtype)


def _depthwise(convolution: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def work(
        values: torch.Tensor,
        weight: torch.Tensor,
        _kernel: Any,
        bias: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
    ) -> torch.Tensor:
        return convolution(values, weight, bias, stride, padding, dilation, groups=values.shape[1])

    return work


def _rms_norm(
    states: torch.Tensor, shape: list[int], weight: torch.Tensor | None, epsilon: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the kernel of aten/src/ATen/native/cuda/layer_norm_kernel.cu: one launch, float32, rounded once;
    one type of states and weights. The second result is the factor of each row, in float32.
    """
    if weight is not None and weight.dtype != states.dtype:
        raise RuntimeError(f"expected scalar type {states.dtype} but found {weight.dtype}")
    out = torch.empty(states.shape, dtype=states.dtype, device=states.device)
    rows = states.shape[: states.dim() - len(shape)]
    factors = torch.empty((*rows, *(1 for _ in shape)), dtype=torch.float32, device=states.device)

    def work(near: torch.Tensor, *more: torch.Tensor) -> None:
        *weights, out, factors = more
        scale = weights[0].float() if weights else None
        found, spread = torch.ops.aten._fused_rms_norm(near.float(), shape, scale, epsilon)  # of the CPU
        out.copy_(found)
        factors.copy_(spread)

    given = [states] if weight is None else [states, weight]
    card.kernel(states.device.index, "aten::_fused_rms_norm", given, [out, factors], work)
    return out, factors
