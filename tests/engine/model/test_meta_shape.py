"""What a model says of itself without its weights, against what is there when it runs: parameters, what
bitsandbytes shrinks, caches and loaded bytes of tiny models of every family, exactly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D

from pipeline.config import ModelConfig
from pipeline.engine.kv.cache import tensors
from pipeline.engine.model import meta_shape as module
from pipeline.engine.model.loading import load_model
from pipeline.engine.model.meta_shape import meta_shape
from pipeline.errors import CannotPlan
from pipeline.planner.model.shape import ModelShape
from tests.engine.model.small_families import QUICK, SMALL, small_config, small_model
from tests.engine.small_tokenizers import byte_level, wrapped
from tests.equivalence.families import _BASE
from tests.planner.known_models import known_shape
from tests.tiers import quick

ALL = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.full]) for name in SMALL]
SMALL_MODEL = ModelConfig(id="small")
# Families of the library that nothing here is written for.
OTHERS = ("ctrl", "diffllama", "flex_olmo", "granite_swa")


def linear_numbers(model: Any) -> int:
    """Of the modules that transformers exchanges for bitsandbytes' own: exactly nn.Linear or Conv1D, and not
    the head.
    """
    head = model.get_output_embeddings()
    linears = [
        layer
        for layer in model.modules()
        if (type(layer) is torch.nn.Linear or isinstance(layer, Conv1D)) and layer is not head
    ]
    return sum(layer.weight.numel() for layer in linears)


def cached_bytes(model: Any, tokens: int) -> int:
    """Of one row of so many tokens in the library's own cache."""
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(torch.arange(3, 3 + tokens)[None], cache=cache, use_cache=True)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(cache))


def compare(shape: ModelShape, model: Any, dtype: str) -> None:
    """Parameters, what shrinks, and caches below and beyond the windows of 16."""
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert sum(weight.parameters for weight in shape.weights if weight.shrinks) == linear_numbers(model)
    for tokens in (1, 9, 40):
        assert cached_bytes(model, tokens) == shape.kv_bytes(tokens, dtype), tokens


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_model_is_what_it_says_without_weights(name: str, dtype: str) -> None:
    model = small_model(name, getattr(torch, dtype))
    compare(meta_shape(small_config(name), SMALL_MODEL), model, dtype)


@pytest.mark.parametrize("family", OTHERS)
def test_a_family_that_nobody_thought_of(family: str) -> None:
    config = AutoConfig.for_model(family, **_BASE)
    shape = meta_shape(config, SMALL_MODEL)
    compare(shape, AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval(), "float32")


# Every causal language model of the library, at its smallest: right to the last number, or refused.
@pytest.mark.full
@pytest.mark.timeout(1200)
def test_no_family_of_the_library_gets_a_wrong_number() -> None:
    wrong, said = [], 0
    for family in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            config = AutoConfig.for_model(family, **_BASE)
            shape = meta_shape(config, SMALL_MODEL)
            if shape.parameters > 20e6:  # its sizes have other names than those few
                continue
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        except Exception:  # noqa: BLE001, S112  # some cannot be built from these few numbers, in as many ways; some are refused
            continue
        said += 1
        try:
            compare(shape, model, "float32")
        except Exception as error:  # noqa: BLE001  # all of them are shown
            wrong.append(f"{family}: {type(error).__name__} {error}"[:300])
    assert not wrong
    assert said > 50


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [("none", "float32"), ("none", "bfloat16"), ("nf4", "float32"), ("int8", "float32")],
)
@pytest.mark.parametrize(
    "name",
    quick(
        ["llama (GQA)", "gpt2", "falcon (MQA)", "mixtral (MoE)", "deepseek_v3 (MLA)", "mamba2 (recurrent)"],
        "gpt2",
        "mixtral (MoE)",
        "mamba2 (recurrent)",
    ),
)
def test_loaded_weights_weigh_what_is_said(name: str, quantization: Any, dtype: Any, tmp_path: Path) -> None:
    model = small_model(name, torch.float32)
    model.save_pretrained(tmp_path / "model")
    wrapped(byte_level()).save_pretrained(tmp_path / "model")
    asked = ModelConfig(id=str(tmp_path / "model"), quantization=quantization, dtype=dtype, device_map="cpu")
    loaded = load_model(asked, dtype, tmp_path / "offload")
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in loaded.model.buffers())
    expected = meta_shape(model.config, asked).weights_bytes(quantization, dtype)
    assert loaded.facts["weights_bytes"] - buffers == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Llama 2 7B", "MHA, 32 layers (32 full), 32 KV heads of 128"),
        ("Gemma 3 4B", "GQA, 34 layers (29 sliding of 1,024 tokens, 5 full), 4 KV heads of 256"),
        ("DeepSeek V3", "MLA, 61 layers (61 latent), 1 KV head of 512 + 64, 8 of 256 experts a token"),
        (
            "gpt-oss 20B",
            "GQA, 24 layers (12 sliding of 128 tokens, 12 full), 8 KV heads of 64, 4 of 32 experts a token",
        ),
        ("Mamba 2.8B", "no attention, 64 layers (64 recurrent)"),
        (
            "Jamba 52B",
            "GQA, 32 layers (28 recurrent, 4 full), 8 KV heads of 128, 2 of 16 experts a token",
        ),
    ],
)
def test_it_is_described(name: str, words: str) -> None:
    assert known_shape(name).describe() == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lfm2", "2 convolution, 1 full"),
        ("llama4_text", "chunked of 16 tokens"),
        ("falcon_h1", "3 hybrid"),
        ("qwen3_next (hybrid)", "recurrent"),
    ],
)
def test_kinds_of_layers(name: str, words: str) -> None:
    assert words in meta_shape(small_config(name), SMALL_MODEL).describe()


def test_the_configuration_stays_as_it_is() -> None:
    config = small_config("llama (GQA)")
    before = config.to_dict()
    meta_shape(config, SMALL_MODEL)
    assert config.to_dict() == before


def test_a_layer_that_keeps_more_than_it_is_given_is_refused() -> None:
    with pytest.raises(CannotPlan, match="'cpmant' caches more than the tokens it is given"):
        meta_shape(AutoConfig.for_model("cpmant", **_BASE), SMALL_MODEL)


def test_a_model_of_too_many_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = AutoConfig.for_model("llama", **{**_BASE, "num_hidden_layers": 100})
    assert meta_shape(deep, SMALL_MODEL).layers == 100
    monkeypatch.setattr(module, "_MOST_CALLS", 5000)
    with pytest.raises(CannotPlan, match="takes more than 5,000 steps to build"):
        meta_shape(deep, SMALL_MODEL)


def test_a_family_may_call_its_sizes_by_names_of_its_own() -> None:
    sizes = {"num_layers": 2, "d_model": 64, "attention_heads": 4, "ffn_dim": 128, "vocab_size": 512}
    shape = meta_shape(AutoConfig.for_model("xglm", **sizes), SMALL_MODEL)
    assert (shape.layers, shape.hidden, shape.query_heads) == (2, 64, 4)


def test_who_attends_without_a_kernel_keeps_scores() -> None:
    assert meta_shape(small_config("gpt_oss"), SMALL_MODEL).keeps_scores
    assert not meta_shape(small_config("arcee"), SMALL_MODEL).keeps_scores
    asked = SMALL_MODEL.model_copy(update={"attention": "eager"})
    assert meta_shape(small_config("arcee"), asked).keeps_scores
