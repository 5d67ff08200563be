"""Calibration: probabilities that sum to 1, assumptions that do what they say, gold labels that help and
never test themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from pipeline.errors import LedgerError, UsageError
from pipeline.quality.calibration import Calibration, calibrate, yes_no
from pipeline.quality.features import Features
from pipeline.quality.fitting import one_thread
from pipeline.quality.metrics import expected_calibration_error
from pipeline.quality.scores import log_softmax
from tests.quality.tables import LABELS, drawn, gold_of


def accuracy_of(calibration: Calibration, scores, gold) -> float:
    return float((calibration.log_probabilities(scores).argmax(axis=1) == gold).mean())


def test_without_calibration_the_scores_are_only_normalized() -> None:
    scores, _ = drawn(50, 1)
    found = calibrate(scores, LABELS, method="none")
    assert np.allclose(found.log_probabilities(scores), log_softmax(scores))
    assert found.method == "none"


def test_over_the_batch_a_bias_of_the_labels_goes_away() -> None:
    scores, gold = drawn(2000, 2)
    fair, _ = drawn(2000, 2, bias=(0.0, 0.0, 0.0, 0.0))
    raw = float((scores.argmax(axis=1) == gold).mean())
    best = float((fair.argmax(axis=1) == gold).mean())
    found = calibrate(scores, LABELS)
    assert found.method == "batch"
    assert "equally common" in found.sentence
    assert raw < best - 0.2
    assert accuracy_of(found, scores, gold) > best - 0.01


@pytest.mark.full
def test_a_constant_added_to_a_document_changes_nothing() -> None:
    scores, gold = drawn(300, 3)
    moved = scores + np.random.default_rng(0).normal(size=(300, 1)) * 10
    for chosen in ({}, {"expected_shares": dict.fromkeys(LABELS, 0.25)}, {"gold": gold_of(gold, range(60))}):
        one, other = calibrate(scores, LABELS, **chosen), calibrate(moved, LABELS, **chosen)
        assert np.allclose(one.log_probabilities(scores), other.log_probabilities(moved), atol=1e-4)


def test_expected_shares_are_reached_and_help_where_classes_are_skewed() -> None:
    shares = (0.85, 0.05, 0.05, 0.05)
    scores, gold = drawn(3000, 4, shares=shares)
    even = calibrate(scores, LABELS)
    told = calibrate(scores, LABELS, expected_shares=dict(zip(LABELS, shares, strict=True)))
    mean = np.exp(told.log_probabilities(scores)).mean(axis=0)
    assert np.abs(mean - shares).max() < 1e-5
    assert "world 0.85" in told.assumption
    assert accuracy_of(told, scores, gold) > accuracy_of(even, scores, gold) + 0.02


@pytest.mark.parametrize("sharpness", [0.0, 5.0, 400.0])
def test_expected_shares_are_reached_for_vague_and_for_certain_scores(sharpness: float) -> None:
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(500, 3)) * sharpness
    wanted = {"a": 0.7, "b": 0.2, "c": 0.1}
    mean = np.exp(calibrate(scores, list(wanted), expected_shares=wanted).log_probabilities(scores)).mean(
        axis=0
    )
    assert np.abs(mean - list(wanted.values())).max() < (1e-5 if sharpness < 100 else 0.01)


def test_gold_labels_beat_the_batch_where_its_assumption_is_wrong() -> None:
    scores, gold = drawn(3000, 5, shares=(0.9, 0.04, 0.03, 0.03))
    found = calibrate(scores, LABELS, gold=gold_of(gold, range(100)))
    fresh = slice(100, None)
    assert found.method == "gold"
    assert (
        accuracy_of(found, scores[fresh], gold[fresh])
        > accuracy_of(calibrate(scores, LABELS), scores[fresh], gold[fresh]) + 0.1
    )
    probabilities = np.exp(found.log_probabilities(scores[fresh]))
    right = probabilities.argmax(axis=1) == gold[fresh]
    assert expected_calibration_error(probabilities.max(axis=1), right) < 0.06


def test_cross_validation_does_not_flatter_and_says_what_fresh_documents_show() -> None:
    noise = np.random.default_rng(6).normal(size=(4000, 4))
    gold = np.random.default_rng(7).integers(0, 4, 4000)
    found = calibrate(noise, LABELS, gold=gold_of(gold, range(80)))
    assert found.cross_validation is not None
    # scores that know nothing: a fit tested on its own documents would claim more
    assert found.cross_validation.accuracy < 0.45
    scores, truth = drawn(4000, 8)
    told = calibrate(scores, LABELS, gold=gold_of(truth, range(400)))
    assert told.cross_validation is not None
    assert abs(told.cross_validation.accuracy - accuracy_of(told, scores[400:], truth[400:])) < 0.06


def test_held_out_probabilities_do_not_depend_on_the_documents_own_label() -> None:
    """Changing a gold label must move a document's own held-out answer less than a fit that had seen it would
    be moved.
    """
    scores, gold = drawn(60, 9)
    wrong = gold.copy()
    wrong[0] = (gold[0] + 2) % 4
    found = calibrate(scores, LABELS, gold=gold_of(wrong, range(60)))
    assert found.cross_validation is not None
    place = found.cross_validation.rows.index(0)
    assert int(np.argmax(found.cross_validation.held_out[place])) != wrong[0]


@pytest.mark.parametrize("count", [1, 4, 9])
def test_a_tiny_gold_set_falls_back_to_the_batch_and_says_so(count: int) -> None:
    scores, gold = drawn(200, 10)
    found = calibrate(scores, LABELS, gold=gold_of(gold, range(count)))
    assert (found.method, found.gold, found.cross_validation) == ("batch", count, None)
    assert "too small" in found.sentence
    assert found.bias == calibrate(scores, LABELS).bias


def test_gold_of_one_label_only_falls_back() -> None:
    scores, gold = drawn(500, 11)
    found = calibrate(scores, LABELS, gold=gold_of(gold, np.flatnonzero(gold == 1)[:40].tolist()))
    assert found.method == "batch"
    assert "one label" in found.sentence


def test_labels_without_or_with_one_gold_document_stay_possible() -> None:
    scores, gold = drawn(2000, 12)
    chosen = [
        *np.flatnonzero(gold == 0)[:30].tolist(),
        *np.flatnonzero(gold == 1)[:30].tolist(),
        int(np.flatnonzero(gold == 2)[0]),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = calibrate(scores, LABELS, gold=gold_of(gold, chosen))
    probabilities = np.exp(found.log_probabilities(scores))
    assert np.isfinite(probabilities).all()
    assert (probabilities > 0).all()


def test_one_document_a_label_works_for_many_labels() -> None:
    generator = np.random.default_rng(13)
    labels = [f"intent {number}" for number in range(40)]
    truth = generator.integers(0, 40, 600)
    scores = generator.normal(size=(600, 40))
    scores[np.arange(600), truth] += 3
    chosen = {int(np.flatnonzero(truth == label)[0]): labels[label] for label in range(40)}
    found = calibrate(scores, labels, gold=chosen)
    assert found.method == "gold"
    assert float((found.log_probabilities(scores).argmax(axis=1) == truth).mean()) > 0.5


# few, for a fit with its cross-validation takes seconds
@settings(max_examples=settings().max_examples // 8)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(10, 40), st.booleans())
def test_rows_sum_to_one_and_json_gives_the_same_answers(
    seed: int, label_count: int, count: int, with_gold: bool
) -> None:
    generator = np.random.default_rng(seed)
    labels = [f"label {number}" for number in range(label_count)]
    scores = generator.normal(size=(count, label_count)) * 10.0 ** generator.integers(-3, 4)
    gold = {row: labels[generator.integers(label_count)] for row in range(0, count, 2)} if with_gold else None
    found = calibrate(scores, labels, gold=gold)
    logs = found.log_probabilities(scores)
    assert np.abs(np.exp(logs).sum(axis=1) - 1).max() < 1e-6
    again = Calibration.from_json(found.to_json())
    assert np.array_equal(again.log_probabilities(scores), logs)
    assert again.to_json() == found.to_json()
    assert calibrate(scores, labels, gold=gold) == found


@pytest.mark.full
def test_the_order_of_labels_and_of_gold_changes_nothing_that_matters() -> None:
    scores, gold = drawn(300, 14)
    chosen = gold_of(gold, range(80))
    turned = [2, 0, 3, 1]
    one = calibrate(scores, LABELS, gold=chosen)
    other = calibrate(scores[:, turned], [LABELS[place] for place in turned], gold=chosen)
    difference = one.log_probabilities(scores)[:, turned] - other.log_probabilities(scores[:, turned])
    assert np.abs(difference).max() < 1e-3
    assert one.form == other.form
    assert calibrate(scores, LABELS, gold=dict(reversed(chosen.items()))) == one


def with_features(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, Features]:
    """Scores that say little, and states of 40 numbers (two of them constant) that say more."""
    scores, gold = drawn(count, seed, sharpness=0.3)
    generator = np.random.default_rng(seed)
    states = generator.normal(size=(4, 40))[gold] + generator.normal(size=(count, 40)) * 1.5
    states[:, :2] = 7.0
    return scores, gold, Features(np.arange(count), states.astype(np.float32))


def test_states_are_used_where_they_say_more_than_the_scores() -> None:
    scores, gold, features = with_features(1500, 21)
    chosen = gold_of(gold, range(120))
    without = calibrate(scores, LABELS, gold=chosen)
    found = calibrate(scores, LABELS, gold=chosen, features=features)
    assert found.form.startswith("probe")
    assert found.feature_count == 40
    right = found.log_probabilities(scores, features.values).argmax(axis=1) == gold
    assert right[120:].mean() > accuracy_of(without, scores, gold) + 0.1
    assert found.cross_validation is not None
    assert abs(found.cross_validation.accuracy - right[120:].mean()) < 0.1
    again = Calibration.from_json(found.to_json())
    assert np.array_equal(
        again.log_probabilities(scores, features.values), found.log_probabilities(scores, features.values)
    )
    for wrong in (None, features.values[:, :39], features.values[:10]):
        with pytest.raises(UsageError, match="needs features"):
            found.log_probabilities(scores, wrong)


def test_a_sample_of_the_features_is_enough_if_it_holds_the_gold_documents() -> None:
    scores, gold, features = with_features(600, 22)
    sample = Features(np.arange(0, 600, 2), features.values[::2])
    chosen = gold_of(gold, range(0, 160, 2))
    found = calibrate(scores, LABELS, gold=chosen, features=sample)
    whole = calibrate(scores, LABELS, gold=chosen, features=features)
    difference = found.log_probabilities(scores, features.values).argmax(axis=1) != whole.log_probabilities(
        scores, features.values
    ).argmax(1)
    assert difference.mean() < 0.1
    with pytest.raises(KeyError):
        calibrate(scores, LABELS, gold=gold_of(gold, range(1, 100, 2)), features=sample)


def test_without_gold_the_surest_documents_teach_the_others() -> None:
    scores, gold, features = with_features(2000, 24)
    batch = calibrate(scores, LABELS, features=features, method="batch")
    taught = calibrate(scores, LABELS, features=features)
    assert taught.method == "self_training"
    assert "equally common" in taught.sentence
    right = taught.log_probabilities(scores, features.values).argmax(axis=1) == gold
    assert right.mean() > accuracy_of(batch, scores, gold) + 0.05
    assert np.abs(np.exp(taught.log_probabilities(scores, features.values)).sum(axis=1) - 1).max() < 1e-9
    assert calibrate(scores, LABELS, features=features) == taught
    few = Features(features.places[:99], features.values[:99])
    assert calibrate(scores, LABELS, features=few).method == "batch"
    # says that the states were not kept
    assert calibrate(scores, LABELS, method="self_training").method == "batch"
    shares = {"world": 0.7, "sports": 0.1, "business": 0.1, "science": 0.1}
    skewed = calibrate(scores, LABELS, features=features, expected_shares=shares)
    answers = skewed.log_probabilities(scores, features.values).argmax(axis=1)
    assert (answers == 0).mean() > (
        taught.log_probabilities(scores, features.values).argmax(axis=1) == 0
    ).mean() + 0.1


@pytest.mark.full
def test_states_that_say_nothing_do_no_harm() -> None:
    scores, gold = drawn(1000, 23)
    noise = Features(np.arange(1000), np.random.default_rng(0).normal(size=(1000, 30)).astype(np.float32))
    constant = Features(np.arange(1000), np.ones((1000, 30), dtype=np.float32))
    chosen = gold_of(gold, range(100))
    plain = accuracy_of(calibrate(scores, LABELS, gold=chosen), scores, gold)
    for features in (noise, constant):
        found = calibrate(scores, LABELS, gold=chosen, features=features)
        assert (found.log_probabilities(scores, features.values).argmax(axis=1) == gold).mean() > plain - 0.05


def test_json_is_plain_and_foreign_or_newer_json_is_refused() -> None:
    scores, gold = drawn(200, 15)
    found = calibrate(scores, LABELS, gold=gold_of(gold, range(50)))
    values = json.loads(found.to_json())
    assert values["format"] == 1
    assert values["gold"] == 50
    assert "held_out" not in values["cross_validation"]
    with pytest.raises(LedgerError, match="format 2"):
        Calibration.from_json(json.dumps({**values, "format": 2}))
    for text in ("", "[]", "{}", '{"format": 1}', json.dumps({**values, "surplus": 1})):
        with pytest.raises(LedgerError):
            Calibration.from_json(text)


def test_wrong_arguments_are_refused_with_sentences() -> None:
    scores, _ = drawn(20, 16)
    holed = scores.copy()
    holed[7, 1] = np.nan
    with pytest.raises(UsageError, match="row 7"):
        calibrate(holed, LABELS)
    with pytest.raises(UsageError, match="shape"):
        calibrate(scores, LABELS[:3])
    with pytest.raises(UsageError, match="'cooking'"):
        calibrate(scores, LABELS, gold={0: "cooking"})
    with pytest.raises(UsageError, match="row 20"):
        calibrate(scores, LABELS, gold={row: LABELS[row % 4] for row in range(1, 21)})
    for shares, word in (
        ({"world": 1.0}, "lacks"),
        (dict.fromkeys(LABELS, 0.5), "add up"),
        ({**dict.fromkeys(LABELS, 0.25), "x": 0.1}, "'x'"),
        (dict(zip(LABELS, (1.0, 0.0, 0.0, 0.0), strict=True)), "above 0"),
    ):
        with pytest.raises(UsageError, match=word):
            calibrate(scores, LABELS, expected_shares=shares)


def test_no_documents_and_one_document_work() -> None:
    assert calibrate(np.empty((0, 4)), LABELS).log_probabilities(np.empty((0, 4))).shape == (0, 4)
    one = calibrate(np.array([[-1.0, -2.0, -3.0, -4.0]]), LABELS)
    assert np.allclose(np.exp(one.log_probabilities([[-1.0, -2.0, -3.0, -4.0]])), 0.25)


def test_yes_and_no_are_two_columns() -> None:
    columns = yes_no([0.0, -0.5, -800.0])
    assert np.isfinite(columns).all()
    assert np.allclose(np.exp(columns).sum(axis=1), 1)
    answers = calibrate(columns, ["yes", "no"], expected_shares={"yes": 0.2, "no": 0.8}).log_probabilities(
        columns
    )
    assert np.abs(np.exp(answers).mean(axis=0) - [0.2, 0.8]).max() < 1e-4


def test_a_million_documents_take_seconds() -> None:
    scores, _ = drawn(1_000_000, 17)
    start = time.process_time()
    found = calibrate(scores, LABELS, expected_shares=dict.fromkeys(LABELS, 0.25))
    logs = found.log_probabilities(scores)
    assert time.process_time() - start < 30
    assert np.abs(np.exp(logs).mean(axis=0) - 0.25).max() < 0.01


def test_the_package_and_applying_a_calibration_import_neither_torch_nor_scikit_learn() -> None:
    code = (
        "import sys, numpy as np; from pipeline.quality import abstain, calibration, examples, metrics, "
        "selection, summaries;"
        "c = calibration.calibrate(np.zeros((3, 2)), ['a', 'b'], expected_shares={'a': .5, 'b': .5});"
        "c.log_probabilities(np.zeros((3, 2)));"
        "print([name for name in ('torch', 'transformers', 'sklearn', 'scipy', 'matplotlib') if name in "
        "sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_fits_run_on_one_thread() -> None:
    with one_thread():
        assert {pool["num_threads"] for pool in threadpool_info()} == {1}


def test_few_gold_documents_of_many_labels() -> None:
    labels = [f"label {number}" for number in range(40)]
    generator = np.random.default_rng(5)
    gold = generator.integers(0, 40, size=300)
    scores = generator.normal(size=(300, 40)) + 3 * np.eye(40)[gold]
    states = (generator.normal(size=(40, 30))[gold] + generator.normal(size=(300, 30))).astype(np.float32)
    chosen = {place: labels[gold[place]] for place in range(60)}
    found = calibrate(scores, labels, gold=chosen, features=Features(np.arange(300), states))
    odds = np.exp(found.log_probabilities(scores, states if found.feature_count else None))
    assert np.allclose(odds.sum(axis=1), 1)
    assert (odds.argmax(axis=1) == gold)[60:].mean() > 0.5


@pytest.mark.full
def test_the_same_text_under_two_ids_is_not_in_its_own_test() -> None:
    """States that say nothing of the label, but know a document again: only copies that are kept together
    show that.
    """
    generator = np.random.default_rng(9)
    gold = np.repeat(generator.integers(0, 4, size=60), 2)
    scores = np.repeat(generator.normal(size=(60, 4)), 2, axis=0)
    states = np.repeat(generator.normal(size=(60, 40)), 2, axis=0).astype(np.float32)
    found = calibrate(
        scores, LABELS, gold=gold_of(gold, range(120)), features=Features(np.arange(120), states)
    )
    assert found.cross_validation is not None
    assert found.cross_validation.accuracy < 0.5
    alike = np.zeros((20, 4))  # nothing to tell documents apart by: the folds stay
    assert calibrate(alike, LABELS, gold=gold_of(gold, range(20))).cross_validation is not None
