"""Operators that only a card's build has, or that the CPU has not for every type: computed on the host."""

from __future__ import annotations

from collections.abc import Callable
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
    def kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = next(a for a in args if isinstance(a, torch.Tensor)).device.index
        card.launch(device, f"aten::{name}")
        near = [card.host_view(a) if isinstance(a, torch.Tensor) else a for a in args]
        return card.card_copy(work(*near, **kwargs).contiguous(), device)

    _library.impl(name, kernel, "CUDA")


def _histc(values: torch.Tensor, bins: int = 100, least: float = 0, most: float = 0) -> torch.Tensor:
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
    one type of states and weights.
    """
    if weight is not None and weight.dtype != states.dtype:
        raise RuntimeError(f"expected scalar type {states.dtype} but found {weight.dtype}")
    device = states.device.index
    card.launch(device, "aten::_fused_rms_norm")
    near = card.host_view(states).float()
    scale = None if weight is None else card.host_view(weight).float()
    found, spread = torch.ops.aten._fused_rms_norm(near, shape, scale, epsilon)  # of the CPU
    return card.card_copy(found.to(states.dtype).contiguous(), device), card.card_copy(
        spread.contiguous(), device
    )
