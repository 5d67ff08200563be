"""What is reckoned against what is there: parameters, linear layers, cache and loaded bytes of tiny models of
every family, exactly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.pytorch_utils import Conv1D

from pipeline.config import ModelConfig
from pipeline.engine.kv.cache import tensors
from pipeline.engine.model.loading import load_model
from pipeline.errors import CannotPlan
from pipeline.planner.model.families import FAMILIES
from pipeline.planner.model.shape import model_shape
from tests.engine.small_tokenizers import byte_level, wrapped
from tests.planner.small_models import QUICK, SMALL, small_config, small_model

ALL = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.full]) for name in SMALL]
NOT_BUILT = {
    "emu3_text_model",
    "gemma3_text",
}  # a part of a larger model; one that the equivalence tests name with its own family


def test_every_planned_family_is_compared() -> None:
    compared = {family for family, _ in SMALL.values()}
    assert set(FAMILIES) - compared <= NOT_BUILT


@pytest.mark.parametrize("name", SMALL)
def test_parameters_and_what_shrinks(name: str) -> None:
    config = small_config(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = model_shape(config.to_dict())
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert sum(weight.parameters for weight in shape.weights if weight.shrinks) == _linear_numbers(model)


def _linear_numbers(model: Any) -> int:
    """Of the modules that transformers exchanges for bitsandbytes' own: exactly nn.Linear or Conv1D, and not
    the head.
    """
    head = model.get_output_embeddings()
    linears = [
        module
        for module in model.modules()
        if (type(module) is torch.nn.Linear or isinstance(module, Conv1D)) and module is not head
    ]
    return sum(module.weight.numel() for module in linears)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cache_weighs_what_is_reckoned(name: str, dtype: str) -> None:
    model = small_model(name, getattr(torch, dtype))
    shape = model_shape(model.config.to_dict())
    for tokens in (1, 9, 40):  # below and beyond the windows of 16
        cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            model(torch.arange(3, 3 + tokens)[None], cache=cache, use_cache=True)
        held = sum(tensor.numel() * tensor.element_size() for tensor in tensors(cache))
        assert held == shape.kv_bytes(tokens, dtype), tokens


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [("none", "float32"), ("none", "bfloat16"), ("nf4", "float32"), ("int8", "float32")],
)
@pytest.mark.parametrize(
    "name",
    ["llama (GQA)", "gpt2", "falcon (MQA)", "mixtral (MoE)", "deepseek_v3 (MLA)", "mamba2 (recurrent)"],
)
def test_loaded_weights_weigh_what_is_reckoned(
    name: str, quantization: Any, dtype: Any, tmp_path: Path
) -> None:
    model = small_model(name, torch.float32)
    model.save_pretrained(tmp_path / "model")
    wrapped(byte_level()).save_pretrained(tmp_path / "model")
    asked = ModelConfig(id=str(tmp_path / "model"), quantization=quantization, dtype=dtype, device_map="cpu")
    loaded = load_model(asked, dtype, tmp_path / "offload")
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in loaded.model.buffers())
    expected = model_shape(model.config.to_dict()).weights_bytes(quantization, dtype)
    assert loaded.facts["weights_bytes"] - buffers == pytest.approx(expected, rel=0.01)


def test_unknown_kinds_are_refused_by_name() -> None:
    known = small_config("llama (GQA)").to_dict()
    with pytest.raises(CannotPlan, match="cannot plan this layer kind: quantum_attention"):
        model_shape({**known, "layer_types": ["quantum_attention"] * 3})
    with pytest.raises(
        CannotPlan, match="cannot plan this layer kind: linear_attention of model type 'llama'"
    ):
        model_shape({**known, "layer_types": ["linear_attention"] * 3})
    with pytest.raises(CannotPlan, match=r"cannot plan this layer kind.*'novel'"):
        model_shape({**known, "model_type": "novel"})
    with pytest.raises(CannotPlan, match="2 kinds of layers for 3"):
        model_shape({**known, "layer_types": ["full_attention"] * 2})


def test_a_rough_reading_says_that_it_is_one() -> None:
    rough = model_shape({**small_config("llama (GQA)").to_dict(), "model_type": "novel"}, rough=True)
    assert rough.assumed
    assert not model_shape(small_config("llama (GQA)").to_dict(), rough=True).assumed


def test_a_tower_that_is_not_known_is_refused() -> None:
    with pytest.raises(CannotPlan, match="beside its llama decoder"):
        model_shape(
            {
                "model_type": "seeing",
                "text_config": small_config("llama (GQA)").to_dict(),
                "vision_config": {"hidden_size": 8},
            }
        )


# Every causal language model of the library, at its smallest: right to the last number, or refused.
@pytest.mark.full
def test_no_family_of_the_library_gets_a_wrong_number() -> None:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from tests.equivalence.families import _BASE

    wrong, planned = [], 0
    for family in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            config = AutoConfig.for_model(family, **_BASE)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config)
            shape = model_shape(config.to_dict())
        except Exception:  # noqa: BLE001, S112  # some cannot be built from these few numbers, in as many ways; most are refused
            continue
        planned += 1
        if shape.parameters != sum(parameter.numel() for parameter in model.parameters()):
            wrong.append(family)
    assert not wrong
    assert planned > 50
