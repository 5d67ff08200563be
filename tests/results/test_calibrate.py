"""What a run does at its end: its labels are calibrated as the configuration says, and what cannot be is told
in the report.
"""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import parse_config
from pipeline.errors import UsageError
from pipeline.results.after_run import check_configured, settle_answers
from pipeline.results.calibrate import calibrate_run
from pipeline.results.label_view import View, view_in_force
from pipeline.results.report import build_report, render_markdown
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import LEDGER
from tests.nights import TASKS, ANight, documents
from tests.quality.tables import LABELS
from tests.results.answered import finished, gold_file
from tests.results.answered_several import LABELS as SEVERAL
from tests.results.answered_several import finished_several


def _ended(
    folder: Path, name: str = "topic", labels: tuple[str, ...] = LABELS, **task: Any
) -> tuple[View | None, str]:
    """The view in force after a run of this configuration, and what could not be calibrated."""
    config = parse_config(
        {
            "model": {"id": "scripted"},
            "source": {"path": str(folder / "in.jsonl")},
            "run": {"directory": str(folder / "run")},
            "tasks": [{"name": name, "kind": "label", "labels": list(labels), **task}],
        }
    )
    with Ledger.open(folder / "run" / LEDGER, write=True) as ledger:
        told = settle_answers(ledger, config)
        ledger.annotate_run(1, calibration=told)
        row = next(row for row in ledger.tasks() if row.job.name == name)
        return view_in_force(ledger, row), told.get(name, "")


def _values(folder: Path, view: View, name: str = "topic") -> list[Any]:
    with Ledger.open(folder / "run" / LEDGER, write=False) as ledger:
        return [shown.value for shown in view.apply([row.results[name] for row in ledger.rows()])]


def test_without_gold_labels_over_the_batch(tmp_path: Path) -> None:
    finished(tmp_path, 40)
    view, told = _ended(tmp_path)
    assert view is not None
    assert (view.calibration.method, view.final, told) == ("batch", True, "")
    again, _ = _ended(tmp_path)
    assert again is not None
    assert again.number == 1


def test_few_documents_are_told(tmp_path: Path) -> None:
    finished(tmp_path, 20)
    view, told = _ended(tmp_path)
    assert view is None
    assert told == "not calibrated: 20 documents are finished, and over the batch at least 32 are needed"
    view, _ = _ended(tmp_path, abstain_below=0.6)
    assert view is not None
    assert (view.calibration.method, view.threshold) == ("none", 0.6)


def test_raw_scores_may_be_abstained_from(tmp_path: Path) -> None:
    finished(tmp_path, 100)
    view, told = _ended(tmp_path, calibration="none", abstain_below=0.6)
    assert view is not None
    assert (view.calibration.method, view.threshold, told) == ("none", 0.6, "")
    assert 0 < _values(tmp_path, view).count(None) < 100
    lax, _ = _ended(tmp_path, calibration="none", abstain_below=0.0)
    assert lax is not None
    assert lax.number == 2
    assert None not in _values(tmp_path, lax)
    assert _ended(tmp_path, calibration="none")[0] is not None
    none, _ = _ended(tmp_path, calibration="none")
    assert none is not None
    assert none.threshold is None


def test_by_the_configured_gold_file(tmp_path: Path) -> None:
    truth = finished(tmp_path, 300, examples=("d1", "d2"))
    gold = gold_file(tmp_path / "gold.jsonl", dict(itertools.islice(truth.items(), 150)))
    view, told = _ended(tmp_path, gold=str(gold), target_accuracy=0.92)
    assert view is not None
    assert (view.calibration.method, view.calibration.gold, told) == ("gold", 148, "")
    assert "left out: 2 shown to the model as examples" in view.sentence
    values = _values(tmp_path, view)
    answered = [
        value == label for value, label in zip(values, truth.values(), strict=True) if value is not None
    ]
    assert 30 < len(answered) < 300
    assert sum(answered) / len(answered) > 0.88


def test_a_target_that_cannot_be_checked_answers_nothing(tmp_path: Path) -> None:
    finished(tmp_path, 60)
    gold = gold_file(tmp_path / "gold.jsonl", {"stranger": "world"})
    view, _ = _ended(tmp_path, gold=str(gold), target_accuracy=0.8)
    assert view is not None
    assert set(_values(tmp_path, view)) == {None}
    assert "no threshold reaches" in view.sentence
    assert "1 not among the finished documents" in view.sentence


def test_a_target_that_is_out_of_reach_is_said_and_an_earlier_view_that_kept_it_stays(tmp_path: Path) -> None:
    """In the morning nothing is in the table that the target does not vouch for."""
    truth = finished(tmp_path, 100)
    gold = gold_file(tmp_path / "gold.jsonl", _as_answered(tmp_path))  # all that the model says is right
    asked: dict[str, Any] = {"gold": str(gold), "calibration": "none"}
    first, told = _ended(tmp_path, **asked, target_accuracy=0.8)
    assert first is not None
    assert (first.number, told) == (1, "")
    gold_file(gold, {name: LABELS[number % 4] for number, name in enumerate(truth)})
    stays, told = _ended(tmp_path, **asked, target_accuracy=0.8)
    assert stays is not None
    assert stays.number == 1
    assert told == "view 2 would answer no document; view 1, whose target accuracy is 80.0%, stays in force"
    strict, told = _ended(tmp_path, **asked, target_accuracy=0.9)  # view 1 has not promised that
    assert strict is not None
    assert set(_values(tmp_path, strict)) == {None}
    assert "no document is answered, as target_accuracy asks for it (view 3)" in told
    with Ledger.open(tmp_path / "run" / LEDGER, write=False) as ledger:
        assert "no document is answered" in render_markdown(build_report(ledger))
    lost, told = _ended(tmp_path, gold=str(tmp_path / "gone.jsonl"), target_accuracy=0.8)
    assert lost is not None
    assert set(_values(tmp_path, lost)) == {None}
    assert "there is no gold file" in told


def _as_answered(folder: Path) -> dict[str, str]:
    with Ledger.open(folder / "run" / LEDGER, write=False) as ledger:
        return {row.input.id: row.results["topic"].value for row in ledger.rows()}


def test_a_threshold_above_everything_is_obeyed_and_said(tmp_path: Path) -> None:
    finished(tmp_path, 60)
    view, told = _ended(tmp_path, abstain_below=1.0)
    assert view is not None
    assert set(_values(tmp_path, view)) == {None}
    assert "no document is answered, as abstain_below asks for it (view 1)" in told


def test_what_a_person_calibrated_by_gold_stays(tmp_path: Path) -> None:
    truth = finished(tmp_path, 100)
    with Ledger.open(tmp_path / "run" / LEDGER, write=True) as ledger:
        calibrate_run(ledger, names=["topic"], gold=gold_file(tmp_path / "gold.jsonl", truth))
    view, told = _ended(tmp_path)
    assert view is not None
    assert (view.number, view.calibration.method) == (1, "gold")
    assert "view 1" in told
    assert "stays in force" in told


def test_what_fails_is_told_and_never_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    truth = finished(tmp_path, 60)
    gold = gold_file(tmp_path / "gold.jsonl", truth)
    gold.write_text(gold.read_text().replace("world", "wurld"))  # changed while the run was going on
    with caplog.at_level(logging.CRITICAL):
        view, told = _ended(tmp_path, gold=str(gold))
    assert view is None
    assert "wurld" in told
    assert told.startswith("not calibrated: ")


def test_without_its_gold_file_a_target_accuracy_answers_nothing(tmp_path: Path) -> None:
    finished(tmp_path, 60)
    view, told = _ended(tmp_path, gold=str(tmp_path / "gone.jsonl"), target_accuracy=0.9)
    assert view is not None
    assert set(_values(tmp_path, view)) == {None}
    assert "there is no gold file" in told


def test_several_labels_are_calibrated_by_their_own_shares_or_told(tmp_path: Path) -> None:
    finished_several(tmp_path, 60)
    view, told = _ended(tmp_path, "tags", SEVERAL, multi=True)
    assert view is None
    assert "each label's own share" in told
    view, told = _ended(
        tmp_path,
        "tags",
        SEVERAL,
        multi=True,
        expected_shares=dict(zip(SEVERAL, (0.5, 0.3, 0.15), strict=True)),
    )
    assert view is not None
    assert (view.calibration.method, told) == ("batch", "")


def test_gold_is_checked_before_the_night(tmp_path: Path) -> None:
    task = {"name": "topic", "kind": "label", "labels": list(LABELS), "gold": str(tmp_path / "none.jsonl")}
    raw: dict[str, Any] = {
        "model": {"id": "m"},
        "source": {"path": "x"},
        "run": {"directory": "y"},
        "tasks": [task],
    }
    with pytest.raises(UsageError, match="there is no gold file"):
        check_configured(parse_config(raw))
    gold_file(tmp_path / "none.jsonl", {"d0": "wurld"})
    with pytest.raises(UsageError, match="wurld"):
        check_configured(parse_config(raw))


def test_the_report_shows_the_view_in_force(tmp_path: Path) -> None:
    finished(tmp_path, 100)
    with Ledger.open(tmp_path / "run" / LEDGER, write=False) as ledger:
        raw = build_report(ledger)["tasks"]["topic"]
    view, _ = _ended(tmp_path, abstain_below=0.6)
    assert view is not None
    values = _values(tmp_path, view)
    with Ledger.open(tmp_path / "run" / LEDGER, write=False) as ledger:
        report = build_report(ledger)
    shown = report["tasks"]["topic"]
    assert raw["view"] is None
    assert (shown["view"]["number"], shown["view"]["method"], shown["view"]["threshold"]) == (1, "batch", 0.6)
    assert shown["labels"]["abstained"] == values.count(None) == shown["finish_reasons"]["abstained"] > 0
    assert shown["labels"]["distribution"] == {
        label: values.count(label) for label in shown["labels"]["distribution"]
    }
    text = render_markdown(report)
    assert "labels are shown through view 1: calibration: batch" in text
    assert f"**{values.count(None)} documents are abstained from**, below the probability 0.600" in text
    assert "as view 1 gives it" in text


def test_the_report_says_why_there_is_none(tmp_path: Path) -> None:
    finished(tmp_path, 20)
    _ended(tmp_path)
    with Ledger.open(tmp_path / "run" / LEDGER, write=False) as ledger:
        assert "not calibrated: 20 documents are finished" in render_markdown(build_report(ledger))


def _night(folder: Path, rows: list[dict[str, Any]], **task: Any) -> ANight:
    return ANight(folder, rows, [{**TASKS[0], **task}], {"batch": 4})


def test_a_night_ends_with_a_view_and_thresholds_cost_no_inference(tmp_path: Path) -> None:
    rows = documents(60, longest=3)
    night = _night(tmp_path, rows, abstain_below=0.5)
    assert night.run().returncode == 0
    assert night.loads() == 1
    first = night.export()
    assert {row["topic_calibration"] for row in first} == {"view 1: batch"}
    strict = _night(tmp_path, rows, abstain_below=1.0)
    done = strict.run()
    assert done.returncode == 0, done.stderr
    assert night.loads() == 1
    assert {row["topic"] for row in night.export()} == {None}
    gold = gold_file(
        tmp_path / "gold.jsonl",
        {row["id"]: "world" if number % 2 else "sports" for number, row in enumerate(rows)},
    )
    by_gold = _night(tmp_path, rows, gold=str(gold))
    done = by_gold.run()
    assert done.returncode == 0, done.stderr
    assert night.loads() == 1
    third = night.export()
    assert {row["topic_calibration"] for row in third} == {"view 3: gold"}
    assert "labels are shown through view 3" in (night.directory / "report.md").read_text(encoding="utf-8")
    shown = night.command("show", str(night.directory), "d0000", "--json")
    story = json.loads(shown.stdout)["documents"][0]["tasks"]["topic"]
    assert story["calibrated"]["probabilities"] == pytest.approx(third[0]["topic_probabilities"])
    assert story["result"]["probabilities"] != pytest.approx(third[0]["topic_probabilities"])
    plain = night.command("show", str(night.directory), "d0000").stdout
    assert "as view 3 shows it: " in plain
    assert "calibrated probabilities: " in plain


def test_paths_in_a_night_are_those_of_the_folder_it_ran_in(tmp_path: Path) -> None:
    gold_file(tmp_path / "gold.jsonl", {"d0000": "world", "d0001": "sports"})
    night = _night(tmp_path, documents(3, longest=2), gold="gold.jsonl")
    assert night.run(cwd=tmp_path).returncode == 0
    with Ledger.open(night.directory / LEDGER, write=False) as ledger:
        assert ledger.runs()[-1]["facts"]["config"]["tasks"][0]["gold"] == str(tmp_path / "gold.jsonl")
