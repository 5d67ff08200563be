"""The plan: shapes of known models, memory that never shrinks when asked for more, sentences for what does
not fit.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import Config, parse_config
from pipeline.errors import ConfigError, DoesNotFit
from pipeline.planner.forecast import decide
from pipeline.planner.model.shape import ModelShape, plain_shape
from pipeline.planner.plan import plan_of, usable, weights_bytes, wish_of
from pipeline.records import Plan
from pipeline.system.hardware import Disk, Hardware, available_ram_bytes
from pipeline.system.hardware_datasheet import card_of
from tests.planner.known_models import known_shape

GIB = 2**30
LLAMA_2_7B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
RESOLVED = {"dtype": "float16", "layout": "instructions_first"}


def config(**sections: Any) -> Config:
    raw: dict[str, Any] = {
        "model": {"id": "m"},
        "source": {"path": "a"},
        "tasks": [{"name": "s", "kind": "summarize"}],
        "run": {"directory": "r"},
    }
    for name, values in sections.items():
        raw[name] = {**raw.get(name, {}), **values}
    return parse_config(raw)


def planned(wanted: Config, shape: ModelShape, machine: Hardware) -> Plan:
    """As a run is planned before its documents are known."""
    forecast = decide(shape, usable(wanted, machine), wish_of(wanted, shape.context_tokens, RESOLVED))
    return plan_of(wanted, shape, machine, RESOLVED, forecast)


def test_llama_2_7b_keeps_half_a_mebibyte_a_token() -> None:
    shape = plain_shape(LLAMA_2_7B)
    assert shape.kv_bytes_per_token("float16") == 32 * 16 * 1024  # 16 KiB a token and layer
    assert shape.kv_bytes_per_token("float16") * 2048 == GIB
    assert shape.attention() == "MHA"


def test_grouped_and_multi_query_models() -> None:
    gqa = plain_shape({**LLAMA_2_7B, "num_hidden_layers": 64, "num_key_value_heads": 8, "head_dim": 128})
    assert gqa.kv_bytes_per_token("bfloat16") == 256 * 1024
    assert gqa.attention() == "GQA"
    falcon = known_shape("Falcon 7B")
    assert (falcon.kv_heads, falcon.head_dim, falcon.attention()) == (1, 64, "MQA")


def test_text_configurations_inside_others_are_found() -> None:
    assert plain_shape({"model_type": "outer", "text_config": LLAMA_2_7B}).layers == 32


def test_an_unknown_shape_names_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        plain_shape({"model_type": "odd", "hidden_size": 8, "num_attention_heads": 2})


def test_weights_of_llama_2_7b() -> None:
    shape = plain_shape(LLAMA_2_7B)
    # 6.74 billion parameters, head counted once
    assert weights_bytes(shape, "none", "float16") == pytest.approx(13.2e9, rel=0.03)
    assert weights_bytes(shape, "nf4", "float16") == pytest.approx(3.6e9, rel=0.05)


@given(st.integers(8, 200), st.integers(0, 200))
def test_more_memory_never_plans_less(ram_gib: int, more_gib: int) -> None:
    shape = plain_shape(LLAMA_2_7B)
    small = planned(config(), shape, Hardware(4, ram_gib * GIB))
    large = planned(config(), shape, Hardware(4, (ram_gib + more_gib) * GIB))
    assert small.batch_tokens <= large.batch_tokens


def test_what_does_not_fit_is_one_sentence_with_remedies() -> None:
    with pytest.raises(DoesNotFit, match=r"0 B are left .* nf4"):
        planned(config(), plain_shape(LLAMA_2_7B), Hardware(4, 3 * GIB))


def test_the_context_is_capped_and_never_raised() -> None:
    shape = plain_shape(LLAMA_2_7B)
    assert (
        planned(config(model={"context_tokens": 1024}), shape, Hardware(4, 32 * GIB)).context_tokens == 1024
    )
    with pytest.raises(ConfigError, match="at most 4,096"):
        planned(config(model={"context_tokens": 9999}), shape, Hardware(4, 32 * GIB))


def test_placement_is_explained() -> None:
    shape = plain_shape(LLAMA_2_7B)
    plan = planned(config(), shape, Hardware(4, 32 * GIB))
    assert plan.placement == "device"
    assert any("without a GPU" in reason for reason in plan.reasons)
    assert (
        planned(config(kv_cache={"placement": "offloaded"}), shape, Hardware(4, 32 * GIB)).placement
        == "offloaded"
    )
    disk = (Disk("/", 100 * GIB),)
    on_disk = planned(config(kv_cache={"placement": "disk"}), shape, Hardware(4, 29 * GIB, disks=disk))
    assert (on_disk.placement, on_disk.batch_tokens >= on_disk.context_tokens) == ("disk", True)
    with pytest.raises(DoesNotFit, match="the disk of the run directory does not hold"):
        planned(
            config(kv_cache={"placement": "disk"}), shape, Hardware(4, 29 * GIB, disks=(Disk("/", 2**20),))
        )


def test_what_is_known_of_a_card_stays_with_it_where_others_are_not_used() -> None:
    machine = Hardware(
        4,
        64 * GIB,
        (24 * GIB, 8 * GIB),
        ("RTX 3090", "RTX 4060"),
        gpu_processors=((82, 8, 6), (24, 8, 9)),
    )
    second = usable(config(model={"max_memory": {1: 4 * GIB}}), machine)
    assert (second.gpu_names, second.gpu_processors) == (("RTX 4060",), ((24, 8, 9),))
    swapped = usable(config(model={"max_memory": {1: 40 * GIB, 0: 40 * GIB}}), machine)
    assert swapped.gpu_bytes == (8 * GIB, 24 * GIB)
    assert card_of(swapped, 0).capability == (8, 9)
    assert usable(config(), machine) == machine


@pytest.mark.parametrize("named", [{1: GIB}, {0: GIB, 3: GIB}])
def test_a_card_that_is_not_there_is_refused_beside_others(named: dict[int, int]) -> None:
    wanted = config(model={"max_memory": named})
    with pytest.raises(ConfigError, match=f"names graphics card {max(named)}; this machine has 1"):
        usable(wanted, Hardware(4, 64 * GIB, (8 * GIB,)))
    assert usable(wanted, Hardware(4, 64 * GIB)) == Hardware(4, 64 * GIB)


def test_a_lossy_placement_is_never_taken_by_itself() -> None:
    shape = plain_shape(LLAMA_2_7B)
    small = Hardware(4, 6 * GIB, disks=(Disk("/", 100 * GIB),))
    tight = planned(config(), shape, small)
    assert tight.placement in ("device", "offloaded", "disk")
    asked = planned(config(kv_cache={"placement": "quantized"}), shape, Hardware(4, 32 * GIB))
    assert asked.placement == "quantized"
    assert asked.kv_bytes_per_token == shape.kv_bytes_per_token("float16")
    roomy = planned(config(), shape, Hardware(4, 16 * GIB))
    packed = planned(config(kv_cache={"placement": "quantized"}), shape, Hardware(4, 16 * GIB))
    assert packed.batch_tokens > 1.9 * roomy.batch_tokens


# From 64 on: a matrix of a few numbers weighs more in nf4, as its code tables alone take a kilobyte.
@given(st.builds(ModelShape, *[st.integers(64, 256)] * 8), st.sampled_from(["none", "int8", "nf4"]))
def test_fewer_bits_never_weigh_more(shape: ModelShape, quantization: str) -> None:
    assert weights_bytes(shape, quantization, "bfloat16") <= weights_bytes(shape, "none", "float32")


def test_ram_is_known() -> None:
    assert available_ram_bytes() > 0
