"""Models that everybody knows, from their configurations alone: sizes and caches as published."""

from __future__ import annotations

import time

import pytest

from pipeline.planner.forecast import Wish, decide
from pipeline.system.hardware_spec import described
from tests.planner.known_models import KNOWN, known_shape
from tests.tiers import quick

GIB = 2**30


# One test, as each worker of a session would ask every model again.
@pytest.mark.parametrize(
    "name",
    quick(KNOWN, "Llama 2 7B", "Qwen3 30B-A3B", "Gemma 3 4B", "DeepSeek V3", "gpt-oss 20B", "Falcon 7B"),
)
def test_each_is_as_published_and_planned_at_once(name: str) -> None:
    known, shape = KNOWN[name], known_shape(name)
    exact = isinstance(known.parameters, int)
    assert shape.parameters == (known.parameters if exact else pytest.approx(known.parameters, rel=0.01))
    if known.active is not None:
        assert shape.active_parameters == pytest.approx(known.active, rel=0.02)
    assert shape.attention() == known.attention
    assert shape.kv_bytes_per_token("bfloat16") == known.kv_bytes
    started = time.perf_counter()
    decide(shape, described("24GiB", "64GiB"), Wish("nf4", "bfloat16", 4096))
    assert time.perf_counter() - started < 2


def test_llama_2_7b_by_context() -> None:
    shape = known_shape("Llama 2 7B")
    assert [shape.kv_bytes(tokens, "float16") / GIB for tokens in (2048, 8192, 32768)] == [1, 4, 16]
    assert shape.kv_bytes_per_token("float16") // shape.layers == 16 * 1024


def test_llama_2_70b_is_140_gb_and_about_38_in_four_bits() -> None:
    shape = known_shape("Llama 2 70B")
    assert shape.weights_bytes("none", "float16") == pytest.approx(138e9, rel=0.005)
    assert shape.bits_alone_bytes(4) == pytest.approx(34.5e9, rel=0.005)
    assert 36e9 < shape.weights_bytes("nf4", "float16") < 40e9
    assert not decide(
        shape, described("24GiB", "128GiB"), Wish("nf4", "float16", 4096, may_stream=False)
    ).fits
    assert decide(shape, described("48GiB", "128GiB"), Wish("nf4", "float16", 4096)).verdict == "resident"


def test_windows_cap_the_cache() -> None:
    shape = known_shape("Gemma 3 1B")
    full = [layer for layer in shape.kinds if layer.kind == "full"]
    assert len(full) == 4  # every sixth of 26
    grown = shape.kv_bytes(20_000, "bfloat16") - shape.kv_bytes(10_000, "bfloat16")
    assert grown == 10_000 * 4 * 2 * 256 * 2


def test_a_window_that_is_switched_off_is_none() -> None:
    """Mistral 7B v0.1 looks back 4,096 tokens in every layer; Qwen2.5 names one and does not use it; Mixtral
    has none.
    """
    mistral, qwen, mixtral = (known_shape(name) for name in ("Mistral 7B", "Qwen2.5 7B", "Mixtral 8x7B"))
    assert {layer.window for layer in mistral.kinds} == {4096}
    # the newest token is there when it is needed
    assert mistral.kv_bytes(32_768, "bfloat16") == 4095 * 128 * 1024
    assert {layer.window for layer in (*qwen.kinds, *mixtral.kinds)} == {None}
    assert qwen.kv_bytes(32_768, "bfloat16") == 32_768 * 56 * 1024
    assert mistral.tokens_in(64 * GIB, "bfloat16") == -1


def test_experts_stay_full_in_four_bits_and_that_is_said() -> None:
    shape = known_shape("Mixtral 8x7B")
    assert shape.weights_bytes("nf4", "bfloat16") > 0.95 * shape.weights_bytes("none", "bfloat16")
    forecast = decide(shape, described("24GiB", "64GiB"), Wish("nf4", "bfloat16", 4096))
    assert any("experts, which bitsandbytes does not shrink" in warning for warning in forecast.warnings)
