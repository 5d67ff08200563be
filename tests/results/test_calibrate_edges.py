"""Views where something is missing: documents not read yet, gold labels that match nothing or are too few,
labels without one.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config import parse_config
from pipeline.errors import UsageError
from pipeline.quality.calibration import calibrate
from pipeline.quality.features import Features
from pipeline.records import TaskJob
from pipeline.results.after_run import settle_answers
from pipeline.results.calibrate import calibrate_run
from pipeline.results.calibrate.making import LEAST_BATCH
from pipeline.results.calibrate.table import read_table
from pipeline.results.evaluate import evaluate
from pipeline.results.report import build_report
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import LEDGER
from tests.quality.tables import LABELS, drawn, gold_of
from tests.results.answered import finished, gold_file
from tests.stores.ledger.ledgers import document, done, read
from tests.tiers import quick


def _open(folder: Path) -> Ledger:
    return Ledger.open(folder / "run" / LEDGER, write=True)


def _some(gold: dict[str, str], count: int) -> dict[str, str]:
    return dict(list(gold.items())[:count])


def test_a_source_that_was_not_read_to_its_end_leaves_a_view_that_is_not_final(tmp_path: Path) -> None:
    """Nothing that was read waits, but the rest of the source does."""
    finished(tmp_path, 40)
    with _open(tmp_path) as ledger:
        read(
            ledger,
            ledger.begin_run({}),
            [document("d0", "treaty border number 0 of the day")],
            complete=False,
        )
        assert not ledger.status().complete
        assert calibrate_run(ledger)["topic"].view.final is False


def test_a_task_that_was_changed_waits_for_all_documents(tmp_path: Path) -> None:
    finished(tmp_path, 40)
    changed = TaskJob(
        "topic",
        "label",
        {"task": {"kind": "label", "labels": [[name, None] for name in LABELS]}, "words": "others"},
    )
    with _open(tmp_path) as ledger:
        ledger.accept_tasks([changed], fork=True)
        assert ledger.views("topic") == []
        assert calibrate_run(ledger)["topic"].view.final is False


def test_gold_labels_of_other_documents_do_not_replace_a_view(tmp_path: Path) -> None:
    gold = finished(tmp_path, 60)
    with _open(tmp_path) as ledger:
        calibrate_run(ledger, gold=gold_file(tmp_path / "gold.jsonl", gold))
        wrong = gold_file(tmp_path / "wrong.jsonl", {"other": "world"})
        with pytest.raises(
            UsageError, match="method batch uses gold labels for nothing but --target-accuracy"
        ):
            calibrate_run(ledger, gold=wrong, method="batch")
        for method in ("auto", "gold"):
            with pytest.raises(
                UsageError,
                match=r"no gold label can be used for task 'topic'.*1 not among the finished documents",
            ):
                calibrate_run(ledger, gold=wrong, method=method)
        assert len(ledger.views("topic")) == 1


def test_a_fault_in_one_task_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    gold = finished(tmp_path, 40)
    other = TaskJob("other", "label", {"task": {"kind": "label", "labels": [["yes", None], ["no", None]]}})
    with _open(tmp_path) as ledger:
        topic = next(task.job for task in ledger.tasks() if task.job.name == "topic")
        ledger.accept_tasks([topic, other], fork=True)
        with pytest.raises(UsageError, match="labels that the task does not have"):
            calibrate_run(ledger, gold=gold_file(tmp_path / "gold.jsonl", gold))
        assert ledger.views("topic") == []


def test_a_few_gold_labels_do_not_bring_the_mean_of_a_few_documents(tmp_path: Path) -> None:
    """Neither by command nor by configuration: over less than the least number of documents nothing is
    calibrated.
    """
    gold = finished(tmp_path, LEAST_BATCH - 1)
    few = gold_file(tmp_path / "few.jsonl", _some(gold, 5))
    config = parse_config(
        {
            "model": {"id": "scripted"},
            "source": {"path": str(tmp_path / "in.jsonl")},
            "run": {"directory": str(tmp_path / "run")},
            "tasks": [{"name": "topic", "kind": "label", "labels": list(LABELS), "gold": str(few)}],
        }
    )
    with _open(tmp_path) as ledger:
        assert "31 documents are finished" in settle_answers(ledger, config)["topic"]
        view = calibrate_run(ledger, gold=few)["topic"].view
    assert view.calibration.method == "none"
    assert "the gold set of 5 documents is too small" in view.sentence


def test_a_few_gold_labels_leave_what_would_be_done_without_them() -> None:
    """Self-training is not lost by them."""
    scores, gold = drawn(400, 1)
    states = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
    states[np.arange(400), gold] += 4
    features = Features(np.arange(400), states)
    without = calibrate(scores, LABELS, features=features)
    found = calibrate(scores, LABELS, features=features, gold=gold_of(gold, range(5)))
    assert (without.method, found.method) == ("self_training", "self_training")
    assert found.feature_weights == without.feature_weights
    assert "too small" in found.sentence


def test_a_label_without_gold_documents_is_named() -> None:
    scores, gold = drawn(200, 1)
    rows = [row for row in range(200) if LABELS[gold[row]] != "sports"][:60]
    assert (
        "no gold document has the label 'sports'"
        in calibrate(scores, LABELS, gold=gold_of(gold, rows)).sentence
    )
    assert "no gold document" not in calibrate(scores, LABELS, gold=gold_of(gold, range(60))).sentence


@pytest.mark.parametrize("seed", quick(range(4), 0, 1))
def test_the_threshold_answers_the_gold_documents_that_it_says(tmp_path: Path, seed: int) -> None:
    """The document whose probability is the threshold is answered, though probabilities are kept rounded."""
    gold = finished(tmp_path, 60, seed=seed)
    path = gold_file(tmp_path / "gold.jsonl", gold)
    with _open(tmp_path) as ledger:
        view = calibrate_run(ledger, gold=path, target_accuracy=0.6)["topic"].view
        judged = evaluate(ledger, gold=path)["tasks"]["topic"]
    coverage = judged["answered"] / judged["judged"]
    assert coverage > 0
    assert f"the others, {coverage:.0%}, are right" in view.sentence


def test_two_thresholds_are_refused(tmp_path: Path) -> None:
    gold = finished(tmp_path, 40)
    with _open(tmp_path) as ledger, pytest.raises(UsageError, match="both set the threshold"):
        calibrate_run(
            ledger, gold=gold_file(tmp_path / "g.jsonl", gold), target_accuracy=0.8, abstain_below=0.9
        )


def test_no_accuracy_is_stated_of_no_answers(tmp_path: Path) -> None:
    gold = finished(tmp_path, 40)
    path = gold_file(tmp_path / "gold.jsonl", _some(gold, 12))
    with _open(tmp_path) as ledger:
        made = calibrate_run(ledger, gold=path, target_accuracy=0.99, show_anyway=True)["topic"]
        assert (made.view.threshold, made.is_shown) == (2.0, True)
        headline = evaluate(ledger, gold=path)["tasks"]["topic"]["headline"]
    assert headline["coverage"]["value"] == 0
    assert "answered_accuracy" not in headline


def test_a_report_drops_what_a_later_calibration_has_settled(tmp_path: Path) -> None:
    gold = finished(tmp_path, 20)
    with _open(tmp_path) as ledger:
        ledger.annotate_run(1, calibration={"topic": "not calibrated: 20 documents are finished"})
        ledger.end_run(1, 0, None)
        assert (
            build_report(ledger)["tasks"]["topic"]["calibration_note"]
            == "not calibrated: 20 documents are finished"
        )
        calibrate_run(ledger, gold=gold_file(tmp_path / "gold.jsonl", gold))
        assert build_report(ledger)["tasks"]["topic"]["calibration_note"] is None


def test_of_a_document_nothing_but_its_numbers_stays_in_memory(tmp_path: Path) -> None:
    """A million documents with many labels are calibrated on a small machine: 8 bytes a score, not a
    dictionary a document.
    """
    labels = [f"label {number}" for number in range(50)]
    rows = [document(f"d{number}") for number in range(3000)]
    job = TaskJob("topic", "label", {"task": {"kind": "label", "labels": [[name, None] for name in labels]}})
    known: dict[str, Any] = {
        "probabilities": dict.fromkeys(labels, 0.02),
        "scores": {name: -4.0 - place for place, name in enumerate(labels)},
    }
    with Ledger.open(tmp_path / LEDGER, write=True) as ledger:
        ledger.accept_tasks([job], fork=False)
        run = ledger.begin_run({})
        read(ledger, run, rows)
        ledger.finish(run, [done("topic", row.key, "label 0", **known) for row in rows])
        task = ledger.tasks()[0]
        read_table(ledger, task)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        table = read_table(ledger, task)
        held_bytes = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert table.scores.shape == (3000, 50)
    assert held_bytes < 1.3 * table.scores.nbytes
