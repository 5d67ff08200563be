"""Products of 4-bit and 8-bit weights on a card: the CPU's numbers, CUDA's refusals."""

from __future__ import annotations

from typing import Any

import bitsandbytes as bnb
import pytest
import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def layer_4bit(dtype: torch.dtype, *, nested: bool = True) -> Any:
    torch.manual_seed(0)
    layer = bnb.nn.Linear4bit(128, 64, bias=False, compute_dtype=dtype, quant_type="nf4")
    layer.weight = bnb.nn.Params4bit(
        torch.randn(64, 128), requires_grad=False, quant_type="nf4", compress_statistics=nested
    )
    return layer.to("cuda").eval()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3])
def test_4_bits(card: Any, dtype: torch.dtype, rows: int) -> None:
    layer = layer_4bit(dtype)
    assert layer.weight.is_cuda
    assert layer.weight.dtype == torch.uint8
    values = torch.randn(rows, 128, device="cuda", dtype=dtype)
    with torch.inference_mode():
        found = layer(values)
    weight = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
    bound = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(found.float(), values.float() @ weight.T, atol=20 * bound, rtol=bound)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_8_bits(card: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 128)
    layer = bnb.nn.Linear8bitLt(128, 64, bias=False, has_fp16_weights=False, threshold=0.0)
    layer.weight = bnb.nn.Int8Params(weight.clone(), requires_grad=False, has_fp16_weights=False)
    layer = layer.to("cuda").eval()
    assert layer.weight.dtype == torch.int8
    values = torch.randn(3, 128, device="cuda", dtype=dtype)
    with torch.inference_mode():
        found = layer(values)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float().cpu(), values.float().cpu() @ weight.T, atol=0.4, rtol=0.05)


def test_a_pointer_into_host_memory_is_refused(card: Any) -> None:
    """A kernel that is given one reads nonsense or ends the process; nobody checks before it."""
    layer = layer_4bit(torch.bfloat16, nested=False)
    state = layer.weight.quant_state
    state.absmax = state.absmax.cpu()
    with pytest.raises((RuntimeError, torch.AcceleratorError)), torch.inference_mode():
        bnb.functional.dequantize_4bit(layer.weight.data, state)
