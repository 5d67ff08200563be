"""Bitsandbytes' own CUDA backend over the card's memory: its choice of kernel, its memory, its refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

Cards = Callable[..., None]


def _linear(inputs: int, outputs: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    import bitsandbytes

    layer = bitsandbytes.nn.Linear4bit(inputs, outputs, bias=False, compute_dtype=dtype, quant_type="nf4")
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))
    layer.weight = bitsandbytes.nn.Params4bit(
        weight, requires_grad=False, quant_type="nf4", compress_statistics=True
    )
    return layer


def _launched(card: Any, work: Callable[[], object]) -> dict[str, int]:
    card.reset_counts()
    with torch.inference_mode():
        work()
    return {name[3:]: count for name, count in card.counts().items() if name.startswith("op ")}


# The projections of Qwen3-4B (inputs, outputs), and up to how many of these rows they run fused in 16 bits.
_SHAPES = {"q": (2560, 4096), "k": (2560, 1024), "o": (4096, 2560), "up": (2560, 9728), "down": (9728, 2560)}
_ROWS = (1, 4, 8, 16, 32, 64, 96, 128, 256, 512)
_FUSED = {
    "rtx4060": (128, 4, 32, 256, 128),
    "rtx3060": (128, 4, 128, 128, 128),
    "rtx3090": (64, 16, 16, 128, 16),
    "t4": (64, 64, 64, 128, 64),
    "rtx5060ti": (64, 16, 96, 256, 96),
    "h200": (4, 32, 4, 32, 4),
}


@pytest.mark.parametrize("name", _FUSED)
def test_the_choice_is_its_own_by_card_rows_and_shape(card: Any, cards: Cards, name: str) -> None:
    cards(name, dry="1")
    dtype = torch.float16 if name == "t4" else torch.bfloat16
    for (inputs, outputs), most in zip(_SHAPES.values(), _FUSED[name], strict=True):
        layer = _packed(inputs, outputs)
        for rows in _ROWS:
            values = torch.empty(rows, inputs, device="cuda", dtype=dtype)
            found = _launched(card, partial(_product, layer, values, inputs, outputs))
            expected = {"bitsandbytes::gemm_4bit": 1} if rows <= most else _UNFUSED
            assert found == expected, (name, inputs, outputs, rows)


_UNFUSED = {"bitsandbytes::dequantize_4bit": 1, "aten::mm.out": 1}


def _packed(inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.empty(inputs * outputs // 2, 1, device="cuda", dtype=torch.uint8)
    return weights, torch.empty(inputs * outputs // 64, device="cuda")


def _product(
    layer: tuple[torch.Tensor, torch.Tensor], values: torch.Tensor, inputs: int, outputs: int
) -> torch.Tensor:
    import bitsandbytes  # noqa: F401  # registers the operator

    weights, scales = layer
    found: torch.Tensor = torch.ops.bitsandbytes.gemm_4bit.default(
        values, weights, [outputs, inputs], scales, 64, "nf4"
    )
    return found


def test_both_ways_give_the_cpus_numbers(card: Any, cards: Cards) -> None:
    cards("rtx3090")
    near, far = _linear(256, 128).to("cpu"), _linear(256, 128).to("cuda")
    for rows in (3, 2000):
        values = torch.randn(rows, 256, dtype=torch.bfloat16)
        with torch.inference_mode():
            torch.testing.assert_close(far(values.to("cuda")).cpu(), near(values), atol=1e-2, rtol=2e-2)


@pytest.mark.parametrize(("rows", "copies"), [(4, False), (2000, True)])
def test_the_copy_in_16_bits_is_in_memory(card: Any, cards: Cards, rows: int, copies: bool) -> None:
    cards("rtx3090", workspace="0B", dry="1")
    layer = _packed(4096, 4096)
    values = torch.empty(rows, 4096, dtype=torch.bfloat16, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _product(layer, values, 4096, 4096)
    needed = 2 * rows * 4096 + (2 * 4096 * 4096 if copies else 0)
    assert (
        needed <= torch.cuda.max_memory_allocated() - before < needed + (1 << 20)
    )  # a block is not split for less


def test_bytes_of_a_fused_product_are_the_packed_ones(card: Any, cards: Cards) -> None:
    cards("rtx4060", dry="1")
    layer = _packed(2560, 9728)
    values = torch.empty(32, 2560, device="cuda", dtype=torch.bfloat16)
    _launched(card, lambda: _product(layer, values, 2560, 9728))
    read = sum(tensor.nbytes for tensor in (*layer, values))
    assert card.counts()["bytes read by kernels"] == read
    assert card.counts()["bytes written by kernels"] == 32 * 9728 * 2


def test_a_pointer_of_the_host_is_an_illegal_access(card: Any) -> None:
    layer = _linear(128, 64).to("cuda")
    state = layer.weight.quant_state
    state.absmax = state.absmax.cpu()
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"), torch.inference_mode():
        layer(torch.randn(3, 128, dtype=torch.bfloat16, device="cuda"))


def test_scales_that_end_too_early_are_an_illegal_access(card: Any) -> None:
    weights, scales = _packed(4096, 4096)
    values = torch.zeros(4, 4096, device="cuda", dtype=torch.bfloat16)
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        _product((weights, scales[: len(scales) // 2].clone()), values, 4096, 4096)


def test_quantizing_ignores_the_current_stream(card: Any) -> None:
    """Its kernel goes to the default stream, so on another one it is a race."""
    import bitsandbytes

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        values = torch.randn(64, 64, device="cuda")
        with pytest.raises(RuntimeError, match="RACE: bitsandbytes::quantize_4bit on stream 0"):
            bitsandbytes.functional.quantize_4bit(values, quant_type="nf4")
    card.forget_races()
    torch.cuda.synchronize()


def test_eight_bits_take_half_precision_only(card: Any) -> None:
    import bitsandbytes

    layer = bitsandbytes.nn.Linear8bitLt(128, 64, bias=False, has_fp16_weights=False, threshold=0.0)
    layer.weight = bitsandbytes.nn.Int8Params(
        torch.randn(64, 128), requires_grad=False, has_fp16_weights=False
    )
    near = layer.weight.data.clone()
    layer = layer.to("cuda").eval()
    values = torch.randn(3, 128, dtype=torch.float16, device="cuda")
    with torch.inference_mode():
        found = layer(values)
        torch.testing.assert_close(
            found.cpu().float(), values.cpu().float() @ near.float().T, atol=0.5, rtol=0.1
        )
    with pytest.raises(ValueError, match="must be float16"):
        torch.ops.bitsandbytes.int8_vectorwise_quant.default(values.bfloat16())
