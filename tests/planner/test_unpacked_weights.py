"""Weights that are unpacked once, where many rows would have them copied in every pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.planner.budget import Wish
from pipeline.planner.forecast import Forecast, decide
from pipeline.planner.fused_products import FusedRows
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.pass_time import Dispatch
from pipeline.planner.plan import plan_of
from pipeline.system.hardware_spec import described
from tests.planner.loads import load_of
from tests.planner.test_plan import config

QWEN3_4B = ModelShape(36, 32, 8, 128, 2560, 9728, 151936, 40960)
Q, KV, OUT, UP, DOWN = (4096, 2560), (1024, 2560), (2560, 4096), (9728, 2560), (2560, 9728)
# As bitsandbytes 0.50 decides for a 3090.
RTX_3090 = FusedRows({KV: 23, OUT: 16, DOWN: 16, Q: 64, UP: 128}, "a test")
WISH = Wish(
    "nf4",
    "bfloat16",
    8192,
    rows=96,
    longest_tokens=1200,
    loads=(load_of([1000], 1000, 200),),
    fused=RTX_3090,
)
REPLAYED = Dispatch(30, 10, 1, replayed=True)


@pytest.fixture(autouse=True)
def _replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a pass costs today, these are about its bytes."""
    monkeypatch.setattr("pipeline.planner.roofline.COUNTED", REPLAYED)


def forecast(wish: Wish = WISH, card: str = "48GiB") -> Forecast:
    return decide(QWEN3_4B, described(card, "32GiB"), wish)


def tokens_per_second(found: Forecast) -> float:
    assert found.step is not None
    return found.rows / found.step.seconds


def test_what_many_rows_would_copy_is_unpacked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = forecast()
    assert set(found.unpacked) >= {KV, OUT, DOWN}
    assert UP not in found.unpacked
    assert any("unpacked once, when they are loaded" in reason for reason in found.reasons)
    monkeypatch.setattr("pipeline.planner.forecast.unpacked_weights", lambda *_: ())
    copied = forecast()
    assert tokens_per_second(found) > 1.05 * tokens_per_second(copied)
    assert found.bandwidth_share is not None
    assert copied.bandwidth_share is not None
    assert found.bandwidth_share > copied.bandwidth_share


def test_their_memory_is_planned() -> None:
    found = forecast()
    numbers = sum(out * inner for out, inner in (*found.unpacked, *(KV,) * (KV in found.unpacked)))
    packed = QWEN3_4B.weights_bytes("nf4", "bfloat16")
    more = found.weights_bytes["device"] - packed
    assert more == pytest.approx(36 * numbers * (2 - 0.5161), rel=0.001)


@pytest.mark.parametrize(
    "wish",
    [
        replace(WISH, fused=FusedRows(dict.fromkeys(RTX_3090.rows, 512), "all of it fused")),
        replace(WISH, fused=None),
        replace(WISH, dtype="float32"),
        replace(WISH, quantization="none", fused=None),
        replace(WISH, rows=8),
    ],
)
def test_where_it_does_not_pay_nothing_is(wish: Wish) -> None:
    assert forecast(wish).unpacked == ()


def test_a_small_card_needs_its_memory_for_rows() -> None:
    early = replace(WISH, rows=None, fused=FusedRows(dict.fromkeys(RTX_3090.rows, 4), "a test"))
    small = forecast(early, "8GiB")
    assert UP not in small.unpacked
    assert small.fits


def test_the_plan_says_what_is_unpacked() -> None:
    wanted = config(model={"quantization": "nf4", "context_tokens": 8192})
    machine = described("48GiB", "32GiB")
    resolved = {"dtype": "bfloat16", "layout": "instructions_first"}
    found = plan_of(wanted, QWEN3_4B, machine, resolved, forecast(replace(WISH, loads=())))
    assert found.unpacked == forecast().unpacked  # of the documents it depends on the longest row alone
