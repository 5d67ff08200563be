"""Which attention kernel a card would take, counted: the numbers come from the CPU's."""

from __future__ import annotations

import collections
from typing import Any

import torch

counted: collections.Counter[str] = collections.Counter()
_HALF = (torch.float16, torch.bfloat16)


def record() -> None:
    """Count every call of ``scaled_dot_product_attention`` on a card."""
    real = torch.nn.functional.scaled_dot_product_attention

    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if query.is_cuda:
            name = kernel(query, key, value, attn_mask, is_causal, enable_gqa)
            counted[f"{name}; {'decode' if query.shape[2] < 9 else 'prefill'}"] += 1
        return real(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention


def kernel(query: Any, key: Any, value: Any, mask: Any, causal: bool, gqa: bool) -> str:
    """Which kernel torch's CUDA build takes (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp), as far as
    shapes and types decide.
    """
    if query.dim() != 4 or query.dtype not in (*_HALF, torch.float32):
        return "math (shape or dtype)"
    if _may_flash(query, key, value, mask, causal, gqa):
        return "flash"
    if _may_be_efficient(query, key, value, mask, gqa):
        return "memory efficient" + ("" if mask is None else " with mask")
    return (
        f"math (mask {mask is not None}, gqa {gqa}, causal {causal} q {query.shape[2] > 1}, "
        f"dtype {query.dtype})"
    )


def _may_flash(query: Any, key: Any, value: Any, mask: Any, causal: bool, gqa: bool) -> bool:
    width = query.shape[-1]
    return (
        query.dtype in _HALF
        and mask is None
        and width <= 256
        and width == value.shape[-1]
        and _rows_are_dense(query, key, value)
        and (_heads_are_equal(query, key, value) or gqa)
        and not (causal and query.shape[2] != key.shape[2])
    )


def _may_be_efficient(query: Any, key: Any, value: Any, mask: Any, gqa: bool) -> bool:
    alignment = 8 if query.dtype in _HALF else 4
    return (
        _rows_are_dense(query, key, value)
        and _heads_are_equal(query, key, value)
        and not gqa
        and query.shape[-1] % alignment == 0
        and value.shape[-1] % alignment == 0
        and (mask is None or mask.stride(-1) == 1 or mask.shape[-1] == 1)
    )


def _rows_are_dense(*tensors: Any) -> bool:
    return all(tensor.stride(-1) == 1 for tensor in tensors)


def _heads_are_equal(query: Any, key: Any, value: Any) -> bool:
    return query.shape[1] == key.shape[1] == value.shape[1]
