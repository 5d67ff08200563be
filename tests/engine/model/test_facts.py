"""The facts of a model come from its folder's config.json and nothing else, and whatever that holds, they are
facts or a sentence.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from pipeline.config import parse_config
from pipeline.engine.hf_backend import TransformersBackend
from pipeline.engine.interface import ModelFacts, PlanRequest
from pipeline.errors import CannotPlan, ConfigError
from pipeline.planner.budget import Wish
from pipeline.system.hardware_spec import described
from tests.equivalence.families import _BASE
from tests.planner.known_models import KNOWN

TINY_LLAMA = {"architectures": ["LlamaForCausalLM"], **KNOWN["TinyLlama 1.1B"].config}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("facts need no network")

    monkeypatch.setattr(socket.socket, "connect", refused)


def backend(folder: Path, keys: dict[str, Any]) -> TransformersBackend:
    """Over a folder of a config.json, and of weights that nobody could read."""
    (folder / "config.json").write_text(json.dumps(keys))
    (folder / "model.safetensors").write_bytes(b"no weights at all")
    raw = {
        "model": {"id": str(folder), "quantization": "none"},
        "source": {"path": "a"},
        "tasks": [{"name": "s", "kind": "summarize"}],
        "run": {"directory": str(folder / "run")},
    }
    return TransformersBackend(parse_config(raw))


def facts(folder: Path, **changes: Any) -> ModelFacts:
    return backend(folder, {**TINY_LLAMA, **changes}).facts()


def test_a_configuration_alone_is_enough(tmp_path: Path) -> None:
    found = facts(tmp_path, dtype="float16")
    assert found.shape is not None
    assert (found.cannot_plan, found.stored_dtype, found.context_tokens) == (None, "float16", 8192)
    assert found.shape.parameters == KNOWN["TinyLlama 1.1B"].parameters
    assert not found.shape.assumed


@pytest.mark.parametrize(
    ("stored", "known_as", "certain"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4", True),
        ({"quant_method": "awq", "bits": 4}, None, False),
    ],
)
def test_of_stored_quantized_weights_the_plain_shape_is_said(
    tmp_path: Path, stored: dict[str, Any], known_as: str | None, certain: bool
) -> None:
    found = facts(tmp_path, quantization_config=stored)
    assert (found.stored_as, found.stored_quantized, found.cannot_plan is None) == (known_as, True, certain)
    assert found.shape is not None
    assert sum(weight.parameters for weight in found.shape.weights if weight.shrinks) > 0.9e9


@pytest.mark.parametrize("family", ["cpmant", "t5gemma", "t5"])
def test_a_model_that_does_not_say_is_taken_for_a_plain_decoder_and_that_is_said(
    tmp_path: Path, family: str
) -> None:
    asked = backend(tmp_path, AutoConfig.for_model(family, **_BASE).to_dict())
    found = asked.facts()
    assert found.shape is not None
    assert found.shape.assumed
    assert found.cannot_plan is not None
    assert "Traceback" not in found.cannot_plan
    assert "\n" not in found.cannot_plan
    resolved = {"dtype": "float32", "layout": "instructions_first"}
    plan = asked.plan(PlanRequest(resolved, described(ram="16GiB"), Wish("none", "float32", 512)))
    assert any("could not be built without its weights" in reason for reason in plan.reasons)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**9},
        {"model_type": "qwen2", "num_hidden_layers": 10**9},  # the library lists the kinds of layers
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 10**9}},
        {"model_type": "gpt2", "n_layer": 10**9},
    ],
)
def test_more_layers_than_any_model_has_are_refused_at_once(tmp_path: Path, changes: dict[str, Any]) -> None:
    started = time.perf_counter()
    with pytest.raises(CannotPlan, match=r"names 1,000,000,000 layers .*; no model of more than 1,000"):
        facts(tmp_path, **changes)
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize("size", [10**9, 10**15])
@pytest.mark.parametrize(
    "key", ["vocab_size", "hidden_size", "intermediate_size", "head_dim", "max_position_embeddings"]
)
def test_absurd_widths_take_no_memory_and_end_in_facts_or_a_sentence(
    tmp_path: Path, key: str, size: int
) -> None:
    started = time.perf_counter()
    try:
        found = facts(tmp_path, **{key: size})
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017  # either is right
    else:
        assert found.shape is not None
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize("kinds", [["quantum_attention"] * 22, ["full_attention"] * 2, "full_attention"])
def test_kinds_of_layers_that_are_none_are_refused(tmp_path: Path, kinds: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        facts(tmp_path, layer_types=kinds)
    assert ("cannot plan this layer kind: quantum_attention" in str(refused.value)) == (
        "quantum" in str(kinds)
    )


def test_a_family_of_nobody_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="novel"):
        facts(tmp_path, model_type="novel")


def test_code_that_a_model_brings_is_not_run_unasked(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(ran)!r}, 'w')\nclass C: pass\nclass M: pass\n")
    own = {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}
    with pytest.raises(ConfigError, match="trust_remote_code: true"):
        facts(tmp_path, model_type="novel", auto_map=own)
    assert (
        facts(tmp_path, auto_map={"AutoModelForCausalLM": "own.M"}).cannot_plan is None
    )  # the library's own
    assert not ran.exists()
