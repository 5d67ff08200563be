"""Formulas of time, against numbers worked out by hand and against each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.planner.budget import Wish
from pipeline.planner.forecast import decide
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.roofline import (
    Duration,
    Speed,
    decode_step,
    load_seconds,
    prefill_operations,
    prefill_seconds,
    transfer_seconds,
)
from pipeline.system.hardware import Rates
from pipeline.system.hardware_datasheet import Link
from pipeline.system.hardware_spec import described
from tests.planner.known_models import KNOWN, VARIED, known_shape, shape_of
from tests.planner.loads import load_of

GIB = 2**30


def llama() -> ModelShape:
    return known_shape("Llama 2 7B")


RATES = Rates("a test", memory_bytes_per_second=1e12, matmul_per_second=1e14, disk_read_bytes_per_second=2e9)
LARGE_CARD = described("80GiB", "64GiB")
ROOF = Speed(RATES, prefill_share=1.0, decode_share=1.0)


def test_a_gib_takes_43_ms_and_16_gib_over_half_a_second() -> None:
    assert transfer_seconds(GIB, 25e9) == pytest.approx(0.043, abs=0.0005)
    assert transfer_seconds(llama().kv_bytes(32768, "float16"), Link(4, 16).pinned_bytes_per_second) > 0.6


def test_prefill_is_two_operations_a_weight_and_token() -> None:
    body = llama().parameters - 2 * 32000 * 4096
    one = prefill_operations(llama(), 1000)
    assert one == pytest.approx(2 * body * 1000 + 2 * 32000 * 4096 + 4 * 4096 * 32 * 1000 * 500, rel=1e-3)
    assert prefill_seconds(llama(), 1000, ROOF) == pytest.approx(one / 1e14)


def test_a_prefix_that_is_there_costs_attention_only() -> None:
    assert prefill_operations(llama(), 1000, 1000) < prefill_operations(llama(), 2000)
    both = prefill_operations(llama(), 1000) + prefill_operations(llama(), 1000, 1000)
    assert both == pytest.approx(prefill_operations(llama(), 2000), rel=1e-3)


def test_a_window_bounds_attention() -> None:
    gemma, whole = (
        known_shape("Mistral 7B"),
        shape_of({**KNOWN["Mistral 7B"].config, "sliding_window": None}),
    )
    assert prefill_operations(gemma, 4000) == prefill_operations(whole, 4000)
    assert prefill_operations(gemma, 32000) < prefill_operations(whole, 32000)


def test_decoding_alone_reads_all_weights_and_the_cache() -> None:
    step = decode_step(llama(), ROOF, quantization="none", dtype="float16", rows=1, tokens=2048)
    read = llama().weights_bytes("none", "float16") - 32000 * 4096 * 2  # a look-up table is not read through
    assert step.resident_seconds == pytest.approx((read + GIB) / 1e12)
    assert step.slowdown == 1


def test_rows_share_the_weights() -> None:
    one, many = (
        decode_step(llama(), ROOF, quantization="none", dtype="float16", rows=rows, tokens=128)
        for rows in (1, 8)
    )
    assert one.weights_seconds == many.weights_seconds
    assert many.cache_seconds == pytest.approx(8 * one.cache_seconds)
    assert many.seconds / 8 < one.seconds / 4


def test_experts_that_nobody_chooses_are_not_read() -> None:
    mixtral = known_shape("Mixtral 8x7B")
    one, many = (mixtral.read_bytes_per_step("none", "float16", rows) for rows in (1, 64))
    assert one == pytest.approx(2 * 12.9e9, rel=0.02)
    assert many == pytest.approx(2 * 46.7e9, rel=0.02)


def test_offloading_is_hidden_only_behind_longer_work() -> None:
    def step(moved: int) -> float:
        return decode_step(
            llama(),
            ROOF,
            quantization="none",
            dtype="float16",
            rows=1,
            tokens=2048,
            transferred_bytes=moved,
            link_bytes_per_second=25e9,
        ).slowdown

    assert step(GIB // 8) == 1
    assert step(16 * GIB) == pytest.approx(16 * GIB / 25e9 / 0.01429, rel=0.01)


def test_unpacking_nf4_slows_a_processor_down() -> None:
    slow = Speed(Rates("a test", 1e12, 1e14, dequantize_weights_per_second=0.4e9), 1.0, 1.0)
    args = {"quantization": "nf4", "dtype": "float32", "rows": 1, "tokens": 128}
    assert decode_step(llama(), slow, **args).seconds > 100 * decode_step(llama(), ROOF, **args).seconds  # type: ignore[arg-type]


def test_calibrated_rates_replace_the_formulas() -> None:
    calibrated = Speed(
        Rates("bench", 1e12, 1e14, 2e9, prefill_tokens_per_second=400.0, decode_tokens_per_second=10.0)
    )
    assert prefill_seconds(llama(), 2000, calibrated) == 5
    assert decode_step(
        llama(), calibrated, quantization="nf4", dtype="float16", rows=1, tokens=99
    ).seconds == pytest.approx(0.1)


def test_loading_is_as_slow_as_the_slower_of_disk_and_link() -> None:
    assert load_seconds(4 * 10**9, RATES) == 2
    assert (
        load_seconds(
            4 * 10**9, Rates("a test", disk_read_bytes_per_second=2e9, to_device_bytes_per_second=1e9)
        )
        == 4
    )
    with pytest.raises(ValueError, match="disk read rate of this machine is not known"):
        load_seconds(1, Rates())


def duration(
    lengths: list[int], documents: int, new_tokens: int = 64, rows: int = 8, **more: int
) -> Duration:
    """As a card that holds all of it is planned for such documents."""
    load = load_of(lengths, documents, new_tokens, **{"instructions": 100, **more})
    found = decide(llama(), LARGE_CARD, Wish("none", "float16", 8192, rows=rows, loads=(load,)))
    assert (found.verdict, found.rows) == ("resident", rows)
    assert found.work is not None
    return found.work


def test_documents_an_hour() -> None:
    speed = Speed.of(LARGE_CARD.rates, on_card=True)
    found = duration([1000] * 10, 10, rows=5, shared=100)
    reading = 10 * prefill_seconds(llama(), 1000, speed, 100) + prefill_seconds(llama(), 100, speed)
    step = decode_step(llama(), speed, quantization="none", dtype="float16", rows=5, tokens=1164)
    assert found.seconds == pytest.approx(reading + 2 * 64 * step.seconds)
    assert found.documents_per_hour == pytest.approx(36000 / found.seconds)
    assert found.range_seconds == (found.seconds, found.seconds)  # all were counted


def test_the_error_of_a_sample_shrinks_with_its_size_and_is_nought_for_all() -> None:
    few, many = (duration([100, 300] * count, 10_000, 1, characters_a_token=0) for count in (5, 500))
    assert 0.09 < few.relative_error < 0.5 / math.sqrt(9)
    assert many.relative_error < few.relative_error / 9
    low, high = few.range_seconds
    assert (low + high) / 2 == pytest.approx(few.seconds)
    assert high - low == pytest.approx(2 * few.relative_error * few.seconds)
    assert duration([100, 300], 2, 1, characters_a_token=0).relative_error == 0


def test_nothing_to_do_takes_no_time() -> None:
    assert duration([], 0, rows=4).documents_per_hour == math.inf


@settings(max_examples=25)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=20), st.integers(1, 1000), st.integers(1, 500))
def test_more_work_never_takes_less_time(lengths: list[int], documents: int, output: int) -> None:
    def seconds(lengths: list[int], documents: int, output: int, **more: int) -> float:
        return duration(lengths, documents, output, characters_a_token=0, **more).seconds * (1 + 1e-9)

    base = duration(lengths, documents, output, characters_a_token=0).seconds
    assert seconds([length + 1 for length in lengths], documents, output) >= base
    assert seconds(lengths, documents + 8, output) >= base
    assert seconds(lengths, documents, output + 1) >= base
    assert seconds(lengths, documents, output, instructions=200) >= base
    shared = duration(lengths, documents, output, characters_a_token=0, shared=100).seconds
    prefix = prefill_seconds(llama(), 100, Speed.of(LARGE_CARD.rates, on_card=True))
    assert shared <= (base + prefix) * (1 + 1e-9)


def test_recurrent_models_are_timed_too() -> None:
    mamba = known_shape("Mamba 2.8B")
    assert prefill_operations(mamba, 2000) == pytest.approx(2 * prefill_operations(mamba, 1000), rel=0.01)
    short, long = (
        decode_step(mamba, ROOF, quantization="none", dtype="float16", rows=1, tokens=tokens)
        for tokens in (10, 100_000)
    )
    assert short == long


sizes = st.builds(ModelShape, *[st.integers(1, 40)] * 2, st.integers(1, 8), *[st.integers(16, 256)] * 5)


@given(sizes, st.integers(1, 5000), st.integers(1, 64))
def test_memory_is_monotone(shape: ModelShape, tokens: int, rows: int) -> None:
    assert shape.kv_bytes(tokens, "float16", rows) <= shape.kv_bytes(tokens + 1, "float16", rows)
    assert shape.kv_bytes(tokens, "float16", rows) <= shape.kv_bytes(tokens, "float16", rows + 1)
    assert shape.kv_bytes(tokens, "float16", rows) <= shape.kv_bytes(tokens, "float32", rows)
    assert shape.activation_bytes(tokens, "float16", rows) <= shape.activation_bytes(
        tokens + rows, "float16", rows
    )
    assert shape.activation_bytes(tokens, "float16") <= shape.activation_bytes(
        tokens, "float16", past_tokens=1
    )
    assert shape.weights_bytes("none", "float16") <= shape.weights_bytes("none", "float32")


@given(st.sampled_from(VARIED), st.integers(0, 40 * GIB), st.integers(0, GIB))
def test_what_fits_fits_and_one_more_does_not(name: str, free: int, more: int) -> None:
    shape = known_shape(name)
    tokens = shape.tokens_in(free, "bfloat16")
    if tokens < 0:
        assert shape.kv_bytes(10**7, "bfloat16") <= free
        return
    assert tokens == 0 or shape.kv_bytes(tokens, "bfloat16") <= free
    assert shape.kv_bytes(tokens + 1, "bfloat16") > free
    assert (
        shape.tokens_in(free + more, "bfloat16") >= tokens or shape.tokens_in(free + more, "bfloat16") == -1
    )
