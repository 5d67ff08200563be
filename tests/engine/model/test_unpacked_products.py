"""Products in 4 bits that are made plain ones: which, with which numbers, and what the model then says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bitsandbytes
import torch

from pipeline.config import ModelConfig
from pipeline.engine.model.loading import load_model
from tests.engine.small_models import save_llama

UP = (128, 64)


def loaded(folder: Path, offload: Path, *shapes: tuple[int, int]) -> Any:
    config = ModelConfig(id=str(folder), quantization="nf4")
    return load_model(config, "float32", offload, unpacked=shapes)


def test_products_of_a_shape_become_plain_with_the_same_numbers(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model", attention_bias=True)
    packed, plain = loaded(folder, tmp_path), loaded(folder, tmp_path, UP, (64, 64))
    assert plain.facts["linear4bit"] == packed.facts["linear4bit"] - 4 * (2 + 2)
    before, after = packed.model.model.layers[1], plain.model.model.layers[1]
    for name in ("mlp.up_proj", "mlp.gate_proj", "self_attn.q_proj", "self_attn.o_proj"):
        weight, now = before.get_submodule(name).weight, after.get_submodule(name)
        assert type(now) is torch.nn.Linear
        expected = bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
        assert torch.equal(now.weight, expected)
    assert torch.equal(after.self_attn.q_proj.bias, before.self_attn.q_proj.bias)
    assert isinstance(after.mlp.down_proj, bitsandbytes.nn.Linear4bit)
    assert plain.facts["weights_bytes"] > packed.facts["weights_bytes"]


def test_the_model_says_the_same(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model")
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        packed = loaded(folder, tmp_path).model(ids).logits
        plain = loaded(folder, tmp_path, UP, (64, 128), (64, 64), (32, 64)).model(ids).logits
    torch.testing.assert_close(plain, packed, atol=1e-4, rtol=1e-3)
