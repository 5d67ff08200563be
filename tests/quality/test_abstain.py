"""Thresholds: the target is met as often as promised, nothing is promised on too little, and what is
abstained is as said.
"""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import UsageError
from pipeline.quality.abstain import abstains, choose_threshold, least_gold, lower_bound
from pipeline.quality.calibration import calibrate
from tests.quality.tables import LABELS, drawn, gold_of


def test_the_bound_is_that_of_clopper_and_pearson() -> None:
    assert lower_bound(10, 10, 0.95) == pytest.approx(0.05 ** (1 / 10))  # all right: closed form
    assert lower_bound(0, 10, 0.95) == 0.0
    assert lower_bound(45, 50, 0.95) == pytest.approx(0.8012, abs=5e-4)
    assert least_gold(0.9, 0.95) == 29
    assert lower_bound(29, 29, 0.95) >= 0.9 > lower_bound(28, 28, 0.95)


def test_good_answers_above_and_bad_ones_below_are_told_apart() -> None:
    generator = np.random.default_rng(0)
    confidences = np.concatenate([generator.uniform(0.8, 1.0, 200), generator.uniform(0.3, 0.8, 200)])
    right = np.concatenate([generator.random(200) < 0.98, generator.random(200) < 0.4])
    found = choose_threshold(confidences, right, 0.9)
    assert found.value is not None
    assert 0.7 < found.value < 0.9
    assert found.lower_bound >= 0.9
    assert found.answered == int((confidences >= found.value).sum())
    assert abstains(confidences, found.value).sum() == 400 - found.answered
    assert f"{found.coverage:.0%}" in found.sentence


def test_the_target_is_missed_no_more_often_than_promised() -> None:
    """Accuracy is 1 - (1 - c) / 2 at confidence c: known truth, so that every chosen threshold can be judged
    exactly.
    """
    generator = np.random.default_rng(3)
    missed = taken = 0
    for _ in range(400):
        confidences = generator.random(150)
        right = generator.random(150) < 0.5 + confidences / 2
        found = choose_threshold(confidences, right, 0.9, confidence=0.8)
        if found.value is not None:
            taken += 1
            # mean accuracy above the threshold, confidences being uniform
            missed += 0.5 + (1 + found.value) / 4 < 0.9
    assert taken > 60
    assert missed / 400 <= 0.2 + 0.04


@pytest.mark.parametrize("count", [0, 1, 5, 100])
def test_where_nothing_qualifies_all_is_abstained_and_it_is_said(count: int) -> None:
    right = np.arange(count) % 2 == 0
    found = choose_threshold(np.linspace(0.1, 1, count), right, 0.95)
    assert found.value is None
    assert "all documents are abstained" in found.sentence
    assert abstains(np.ones(3), found.value).all()


def test_ties_are_answered_together() -> None:
    confidences = np.array([0.9] * 60 + [0.5] * 40)
    found = choose_threshold(confidences, confidences > 0.6, 0.9)
    assert (found.value, found.answered) == (0.9, 60)


def test_fresh_documents_meet_the_target_with_cross_validated_probabilities() -> None:
    kept, coverage = [], []
    for seed in range(3):
        scores, gold = drawn(3000, 100 + seed, sharpness=2.5)
        calibration = calibrate(scores, LABELS, gold=gold_of(gold, range(200)))
        checked = calibration.cross_validation
        assert checked is not None
        held_out = np.array(checked.held_out)
        found = choose_threshold(
            np.exp(held_out.max(axis=1)), held_out.argmax(axis=1) == gold[list(checked.rows)], 0.9
        )
        fresh = np.exp(calibration.log_probabilities(scores[200:]))
        answered = ~abstains(fresh.max(axis=1), found.value)
        coverage.append(answered.mean())
        kept.append((fresh.argmax(axis=1) == gold[200:])[answered].mean() if answered.any() else 1.0)
    assert np.mean(kept) >= 0.88
    assert np.mean(coverage) >= 0.4


def test_impossible_targets_are_refused() -> None:
    for target in (0.0, 1.0, 90.0):
        with pytest.raises(UsageError, match="target_accuracy"):
            choose_threshold(np.ones(3), np.ones(3, dtype=bool), target)
