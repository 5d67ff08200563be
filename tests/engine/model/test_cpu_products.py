"""Products of linear layers on a processor: weights laid out beforehand, 4-bit ones unpacked in place."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, Qwen2Config

from pipeline.engine.model import cpu_products
from pipeline.engine.model.cpu_products import FastProducts, is_on_processor, speed_up
from pipeline.engine.model.loading import compute_as_asked
from tests.engine.small_models import SIZES, save_llama

IDS = torch.tensor([[3, 10, 17, 24, 31, 38, 45]])


@pytest.fixture(autouse=True)
def always_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is by time; what is tested is what follows from it."""
    monkeypatch.setattr(cpu_products, "_WORTH", math.inf)


def _model(config: Any = LlamaConfig, **changes: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config(**{**SIZES, **changes}), dtype=torch.float32).eval()


def _nf4(folder: Path) -> Any:
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    model = AutoModelForCausalLM.from_pretrained(
        save_llama(folder), quantization_config=settings, dtype=torch.float32
    )
    compute_as_asked(model, "float32")
    return model


def _logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(ids).logits
    return found


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("config", [LlamaConfig, Qwen2Config])  # the second has biases
def test_laid_out_weights_give_the_plain_numbers(config: Any, tied: bool) -> None:
    model = _model(config, tie_word_embeddings=tied)
    plain = [_logits(model, ids) for ids in (IDS, IDS.repeat(3, 40))]
    facts = speed_up(model, exact=True)
    assert facts["laid_out"] == 4 * 7 + 1
    assert facts["beside_bytes"] == (512 * 64 * 4 if tied else 0)
    for expected, ids in zip(plain, (IDS, IDS.repeat(3, 40)), strict=True):
        torch.testing.assert_close(_logits(model, ids), expected, atol=1e-5, rtol=1e-5)


def test_no_weight_is_there_twice() -> None:
    model = _model()
    speed_up(model, exact=True)
    projection = model.model.layers[0].mlp.up_proj
    assert projection.weight.shape == (128, 64)
    assert projection.weight.untyped_storage().nbytes() == 4
    assert projection.weight.isnan().all()
    assert sum(parameter.numel() for parameter in model.parameters()) == model.num_parameters()


def test_undone_weights_are_the_same_bits() -> None:
    model = _model()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    plain = _logits(model)
    products = FastProducts(model, free=True)
    products.start()
    products.undo()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name
    assert torch.equal(_logits(model), plain)


def test_others_use_the_model_between_two_turns() -> None:
    model = _model()
    plain = _logits(model)
    products = FastProducts(model, free=False)
    with products.started():
        assert all(
            "forward" in vars(module)
            for module in model.model.layers[0].mlp.children()
            if hasattr(module, "weight")
        )
        torch.testing.assert_close(_logits(model), plain, atol=1e-5, rtol=1e-5)
    assert torch.equal(_logits(model), plain)


def test_a_family_that_reads_its_weights_keeps_the_plain_products() -> None:
    model = _model()
    mlp = model.model.layers[1].mlp
    mlp.forward = lambda states: (
        mlp.down_proj(mlp.up_proj(states)) + torch.nn.functional.linear(states, mlp.up_proj.weight[:64])
    )
    plain = _logits(model)
    facts = speed_up(model, exact=True)
    assert "logits differ" in facts["plain_because"]
    assert torch.equal(_logits(model), plain)


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_nf4_is_the_librarys_bit_for_bit(tmp_path: Path, rows: int) -> None:
    model = _nf4(tmp_path)
    layers, states = (
        model.model.layers[0],
        torch.randn(1, rows, 64, generator=torch.Generator().manual_seed(2)),
    )
    modules = [layers.self_attn.q_proj, layers.self_attn.k_proj, layers.mlp.gate_proj]
    with torch.inference_mode():
        plain = [module(states) for module in modules]
        facts = speed_up(model, exact=True)
        assert facts["unpacked_in_place"] == 4 * 7
        for module, expected in zip(modules, plain, strict=True):
            assert torch.equal(module(states), expected)


def test_a_model_that_is_elsewhere_is_left_alone() -> None:
    model = _model()
    model.model.layers[2].computes_on = torch.device("cpu")
    assert not is_on_processor(model)
    assert speed_up(model, exact=True) == {}
