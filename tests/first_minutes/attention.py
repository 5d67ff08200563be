"""Kernels that attention over cached keys may use, side by side, as they are in this release of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.first_minutes.results import DEVICE, TINY, say, seconds_of, told

HEADS, GROUPS, WIDTH = (4, 2, 16) if TINY else (32, 8, 128)


def attention_kernels() -> None:
    """Decoding rows of several lengths, then reading."""
    for rows, columns in ((4, 64),) if TINY else ((64, 512), (64, 1024), (256, 512), (8, 8192)):
        say("attention, decoding", rows=rows, columns=columns, found=_decoding(rows, columns))
    rows, columns = (2, 64) if TINY else (8, 512)
    say("attention, reading", rows=rows, columns=columns, found=_reading(rows, columns))


def _random(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, device=DEVICE, dtype=torch.bfloat16)


def _decoding(rows: int, columns: int) -> dict[str, Any]:
    query = _random(rows, HEADS, WIDTH)
    keys, values = (_random(rows * columns, GROUPS, WIDTH) for _ in range(2))
    lengths = torch.randint(columns // 2, columns, (rows,), device=DEVICE, dtype=torch.int32)
    begins = torch.arange(rows + 1, device=DEVICE, dtype=torch.int32)
    useful = 2 * int(lengths.sum()) * GROUPS * WIDTH * 2

    def varlen() -> object:
        from torch.nn.attention.varlen import AuxRequest, varlen_attn

        asked = {"return_aux": AuxRequest(lse=True), "scale": 0.1, "enable_gqa": True, "seqused_k": lengths}
        return varlen_attn(query, keys, values, begins, begins * columns, 1, columns, **asked)

    def flash() -> object:
        return torch.ops.aten._flash_attention_forward(
            query,
            keys,
            values,
            begins,
            begins * columns,
            1,
            columns,
            0.0,
            False,
            False,
            scale=0.1,
            seqused_k=lengths,
        )

    def by_mask() -> object:
        return _masked(query, keys, values, lengths, rows, columns)

    works = {"varlen with log-sum-exp": varlen, "flash": flash, "memory efficient by mask": by_mask}
    return {name: _timed(work, useful) for name, work in works.items()}


def _masked(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    rows: int,
    columns: int,
) -> object:
    """Query heads of a group side by side, as queries of one head."""
    split = query.view(rows, GROUPS, HEADS // GROUPS, WIDTH)
    key, value = (t.view(rows, columns, GROUPS, WIDTH).transpose(1, 2) for t in (keys, values))
    hidden = (torch.arange(columns, device=DEVICE)[None] >= lengths[:, None])[:, None, None]
    mask = torch.zeros(rows, 1, 1, columns, device=DEVICE, dtype=query.dtype).masked_fill(hidden, -torch.inf)
    mask = mask.expand(rows, GROUPS, HEADS // GROUPS, columns)
    return torch.ops.aten._scaled_dot_product_efficient_attention(split, key, value, mask, True, scale=0.1)


def _reading(rows: int, columns: int) -> dict[str, Any]:
    query = _random(rows, HEADS, columns, WIDTH)
    keys, values = (_random(rows, GROUPS, columns, WIDTH) for _ in range(2))

    def grouped() -> object:
        return torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, is_causal=True, scale=0.1, enable_gqa=True
        )

    return {"grouped": _timed(grouped, 2 * keys.numel() * 2)}


def _timed(work: Callable[[], object], useful: int) -> dict[str, float] | str:
    try:
        with torch.inference_mode():
            seconds = seconds_of(work)
    except Exception as error:  # noqa: BLE001  # that it is refused is the answer
        return told(error)
    return {"us": 1e6 * seconds, "useful GB/s": useful / seconds / 1e9}
