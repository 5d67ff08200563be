"""The prediction of a card's decoding pass, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from pipeline.planner.budget import Wish
from pipeline.planner.forecast import Forecast, decide
from pipeline.planner.fused_products import FusedRows
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.pass_time import CardPass, Dispatch, logits_bytes, useful_bytes
from pipeline.planner.report_lines import quantities
from pipeline.planner.roofline import Speed, decode_step
from pipeline.system.hardware import Rates
from pipeline.system.hardware_spec import described
from tests.planner.loads import load_of

QWEN3_4B = ModelShape(36, 32, 8, 128, 2560, 9728, 151936, 40960)
SHAPES = {"q": (4096, 2560), "kv": (1024, 2560), "o": (2560, 4096), "up": (9728, 2560), "down": (2560, 9728)}
RATES = Rates("a data sheet", memory_bytes_per_second=272e9, matmul_per_second=30e12)
EAGER, REPLAYED = Dispatch(30, 10, 1, replayed=False), Dispatch(30, 10, 1, replayed=True)


def fused(**limits: int) -> FusedRows:
    return FusedRows({shape: limits.get(name, 512) for name, shape in SHAPES.items()}, "a test")


def test_a_launch_takes_6_us_a_replay_10_and_1_a_node_a_wait_15() -> None:
    assert EAGER.seconds(36) == pytest.approx((36 * 30 + 10) * 6e-6 + 15e-6)
    assert REPLAYED.seconds(36) == pytest.approx(10e-6 + 36 * 30 * 1e-6 + 10 * 6e-6 + 15e-6)


def test_a_weight_that_is_copied_costs_nine_times_its_bytes() -> None:
    every, none = fused(), fused(q=0, kv=0, o=0, up=0, down=0)
    linear = sum(weight.parameters for weight in QWEN3_4B.weights if weight.shrinks)
    kept = sum(weight.stored_bytes("nf4", "bfloat16") for weight in QWEN3_4B.weights if weight.shrinks)
    assert every.copied_bytes(QWEN3_4B, "bfloat16", 32) == 0
    assert none.copied_bytes(QWEN3_4B, "bfloat16", 32) == 4 * linear
    assert (kept + 4 * linear) / kept == pytest.approx(8.75, abs=0.05)


def test_a_product_is_copied_from_the_first_row_beyond_its_limit() -> None:
    found = fused(kv=4)
    assert found.copied_bytes(QWEN3_4B, "bfloat16", 4) == 0
    assert found.copied_bytes(QWEN3_4B, "bfloat16", 5) == 4 * 36 * 2 * 1024 * 2560
    assert found.limits() == (4, 512)


def test_what_was_not_asked_for_is_not_fused() -> None:
    assert FusedRows({}, "nothing").copied_bytes(QWEN3_4B, "bfloat16", 1) > 0


def test_a_pass_is_bytes_over_80_percent_and_launches_behind() -> None:
    speed = Speed(RATES, 0.5, 0.8, CardPass(REPLAYED, fused(kv=4)))
    step = decode_step(QWEN3_4B, speed, quantization="nf4", dtype="bfloat16", rows=16, tokens=1000)
    moved = useful_bytes(QWEN3_4B, "nf4", "bfloat16", 16, 1000) + 4 * 36 * 2 * 1024 * 2560
    moved += logits_bytes(QWEN3_4B, "bfloat16", 16)
    assert step.seconds == pytest.approx(moved / (0.8 * 272e9) + REPLAYED.seconds(36))
    assert useful_bytes(QWEN3_4B, "nf4", "bfloat16", 16, 1000) == pytest.approx(
        QWEN3_4B.weights_bytes("nf4", "bfloat16") + 16 * 1000 * 147456
    )


def test_arithmetic_sets_the_pace_where_it_takes_longer() -> None:
    slow = Speed(Rates("a test", 272e9, 1e12), 0.5, 0.8, CardPass(REPLAYED, fused()))
    step = decode_step(QWEN3_4B, slow, quantization="nf4", dtype="bfloat16", rows=64, tokens=10)
    assert step.seconds == pytest.approx(2 * QWEN3_4B.matmul_parameters * 64 / 0.5e12 + REPLAYED.seconds(36))
    assert step.bound == "computing"


def forecast(card: str, limits: FusedRows | None, rows: int | None = None) -> Forecast:
    wish = Wish("nf4", "bfloat16", 8192, rows=rows, loads=(load_of([1000], 1000, 128),), fused=limits)
    return decide(QWEN3_4B, described(card, "32GiB"), wish)


def test_rows_stay_below_a_limit_that_only_a_few_would_pass() -> None:
    few = forecast("rtx3090", fused()).rows - 3
    barely = forecast("rtx3090", fused(q=few, o=few, up=few, down=few))
    assert (barely.rows, barely.most_rows) == (few, few)
    assert any("give more tokens a second by the prediction" in reason for reason in barely.reasons)


def test_many_rows_beyond_a_limit_pay_for_the_copies() -> None:
    free, early = forecast("rtx3090", fused()), forecast("rtx3090", fused(kv=4, o=16, down=16))
    assert (early.rows, early.most_rows) == (free.rows, free.most_rows)
    assert early.step is not None
    assert free.step is not None
    assert early.step.seconds > free.step.seconds


def test_rows_that_the_user_asks_for_stay() -> None:
    assert forecast("rtx3090", fused(q=7, o=7, up=7, down=7, kv=7), rows=8).rows == 8


def test_the_share_of_the_bandwidth_is_told_as_a_prediction() -> None:
    found = forecast("rtx4060", fused(kv=4))
    lines = {line.name: line for line in quantities(found, QWEN3_4B, "bfloat16")}
    share = lines["bandwidth_share"]
    assert found.step is not None
    useful = useful_bytes(QWEN3_4B, "nf4", "bfloat16", found.rows, 1128)
    assert share.value == pytest.approx(100 * useful / 272e9 / found.step.seconds)
    assert "prediction" in share.formula
    assert "prediction" in lines["decode_step"].formula
    assert share.shown.endswith(" %")
    assert any(reason.startswith("predicted, not measured: a step takes") for reason in found.reasons)


def test_a_processor_has_no_such_share() -> None:
    wish = Wish("nf4", "float32", 2048, loads=(load_of([1000], 10, 64),))
    found = decide(QWEN3_4B, described(ram="32GiB"), wish)
    assert found.bandwidth_share is None
    assert found.step is not None
    assert found.step.dispatch_seconds == found.step.beside_seconds == 0
