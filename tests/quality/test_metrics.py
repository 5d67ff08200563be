"""Metrics against numbers worked out by hand, and intervals that hold the truth as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, f1_score

from pipeline.quality.metrics import (
    accuracy,
    bootstrap,
    confusion,
    coverage_curve,
    expected_calibration_error,
    macro_f1,
    per_label,
    reliability,
)

GOLD = np.array([0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 1, 1, -1, 0])


def test_a_small_table_by_hand() -> None:
    assert accuracy(PREDICTED, GOLD) == 0.5
    assert confusion(PREDICTED, GOLD, 3).tolist() == [[2, 1, 0, 0], [0, 1, 0, 1], [1, 0, 0, 0]]
    first, second, third = per_label(PREDICTED, GOLD, ["a", "b", "c"])
    assert (first.precision, first.recall, first.f1) == (
        pytest.approx(2 / 3),
        pytest.approx(2 / 3),
        pytest.approx(2 / 3),
    )
    assert (second.precision, second.recall, second.f1) == (0.5, 0.5, 0.5)
    assert (third.precision, third.recall, third.f1) == (None, 0.0, 0.0)
    assert macro_f1(PREDICTED, GOLD, 3) == pytest.approx((2 / 3 + 0.5 + 0) / 3)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60))
def test_agreement_with_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predicted, gold = (np.array(column) for column in zip(*pairs, strict=True))
    assert (
        confusion(predicted, gold, 4)[:, :4].tolist()
        == confusion_matrix(gold, predicted, labels=range(4)).tolist()
    )
    assert macro_f1(predicted, gold, 4) == pytest.approx(
        f1_score(gold, predicted, average="macro", zero_division=0)
    )


def test_calibration_error_by_hand() -> None:
    confidence = np.array([0.95, 0.95, 0.55, 0.55])
    right = np.array([True, False, True, True])
    assert expected_calibration_error(confidence, right) == pytest.approx(0.5 * 0.45 + 0.5 * 0.45)
    high, low = reliability(confidence, right)[::-1]
    assert (high.count, high.confidence, high.accuracy) == (2, pytest.approx(0.95), 0.5)
    assert (low.low, low.high, low.count) == (0.5, 0.6, 2)


def test_calibration_error_of_perfect_probabilities_is_small() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.random(50_000)
    assert expected_calibration_error(confidence, generator.random(50_000) < confidence) < 0.01
    assert expected_calibration_error(confidence**0.3, generator.random(50_000) < confidence) > 0.1


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=40))
def test_bins_hold_every_document_once(answers: list[tuple[float, bool]]) -> None:
    confidence, right = (
        np.array([value for value, _ in answers], dtype=float),
        np.array([hit for _, hit in answers], dtype=bool),
    )
    bins = reliability(confidence, right)
    assert sum(found.count for found in bins) == len(answers)
    for found in bins:
        assert found.low - 1e-9 <= found.confidence <= found.high + 1e-9
    gap = sum(found.count * abs(found.confidence - found.accuracy) for found in bins) / max(1, len(answers))
    assert expected_calibration_error(confidence, right) == pytest.approx(gap)


def test_coverage_curve_takes_ties_together() -> None:
    curve = coverage_curve(np.array([0.9, 0.5, 0.9, 0.7]), np.array([True, False, False, True]))
    assert [(point.threshold, point.answered, point.accuracy) for point in curve] == [
        (0.9, 2, 0.5),
        (0.7, 3, pytest.approx(2 / 3)),
        (0.5, 4, 0.5),
    ]
    assert curve[-1].coverage == 1.0
    assert coverage_curve(np.array([]), np.array([], dtype=bool)) == []


def test_bootstrap_is_seeded_and_holds_the_truth() -> None:
    generator = np.random.default_rng(1)
    inside = 0
    for trial in range(100):
        right = generator.random(150) < 0.7
        interval = bootstrap(
            lambda rows, right=right: float(right[rows].mean()), 150, seed=trial, resamples=300
        )
        inside += interval.low <= 0.7 <= interval.high
    assert 86 <= inside <= 100
    again = bootstrap(lambda rows: float(right[rows].mean()), 150, seed=99, resamples=300)
    assert again == interval
    assert bootstrap(lambda _: 0.0, 0).low == 0.0
