"""A model asked without its weights says what the planner reckons for its family, and what nobody reckons for
the others.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from pipeline.engine.kv.cache import tensors
from pipeline.engine.model.facts import model_facts
from pipeline.engine.model.meta_shape import meta_shape
from pipeline.errors import CannotPlan
from pipeline.planner.model.shape import ModelShape, model_shape
from tests.equivalence.families import _BASE
from tests.planner.known_models import KNOWN
from tests.planner.small_models import QUICK, SMALL, small_config

ALL = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.full]) for name in SMALL]
# Families of the library that have no line in the planner.
OTHERS = ("ctrl", "diffllama", "flex_olmo", "granite_swa")


def numbers(shape: ModelShape) -> dict[Any, Any]:
    """Everything that a forecast takes from a shape."""
    found: dict[Any, Any] = {"words": shape.describe(), "tied": shape.tied, "layers": shape.layers}
    found |= {"active": shape.active_parameters, "products": shape.matmul_parameters}
    for quantization in ("none", "int8", "nf4"):
        found[quantization] = [
            say(quantization, "bfloat16")
            for say in (
                shape.weights_bytes,
                shape.largest_layer_bytes,
                shape.largest_module_bytes,
                shape.read_bytes_per_step,
            )
        ]
    for tokens in (1, 9, 40, 5000):
        found[tokens] = [shape.kv_bytes(tokens, "bfloat16"), shape.kv_bytes(tokens, "float32")]
        found[tokens].append(shape.activation_bytes(min(tokens, 512), "bfloat16", 2, tokens))
    return found


@pytest.mark.parametrize("name", ALL)
def test_the_model_says_what_is_reckoned(name: str) -> None:
    config = small_config(name)
    assert numbers(meta_shape(small_config(name))) == numbers(model_shape(config.to_dict()))


@pytest.mark.parametrize("name", ["SmolLM2 135M", "GPT-2", "Gemma 3 4B", "gpt-oss 20B"])
def test_and_so_do_known_ones(name: str) -> None:
    keys = dict(KNOWN[name].config)
    asked = meta_shape(AutoConfig.for_model(keys.pop("model_type"), **keys))
    assert numbers(asked) == numbers(model_shape(KNOWN[name].config))


@pytest.mark.parametrize("family", OTHERS)
def test_a_family_without_a_line_is_asked(family: str) -> None:
    config = AutoConfig.for_model(family, **_BASE)
    with pytest.raises(CannotPlan):
        model_shape(config.to_dict())
    facts = model_facts(config)
    assert facts.cannot_plan is None
    assert facts.shape is not None
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **_BASE), dtype=torch.float32)
    assert facts.shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    for tokens in (1, 9, 40):
        cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            model(torch.arange(3, 3 + tokens)[None], cache=cache, use_cache=True)
        held = sum(tensor.numel() * tensor.element_size() for tensor in tensors(cache))
        assert held == facts.shape.kv_bytes(tokens, "float32"), tokens


def test_a_model_that_keeps_more_than_is_seen_is_still_unknown() -> None:
    """It puts tokens of its own before the prompt."""
    facts = model_facts(AutoConfig.for_model("cpmant", **_BASE))
    assert facts.cannot_plan is not None
    assert "cpmant" in facts.cannot_plan
    assert facts.shape is not None
    assert facts.shape.assumed
