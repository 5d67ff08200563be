"""Several labels a document: each a yes/no question that is calibrated, judged and reviewed by itself."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import LedgerError, UsageError
from pipeline.quality.several import parse_calibration
from pipeline.results.calibrate import calibrate_run
from pipeline.results.evaluate import evaluate
from pipeline.results.evaluate.table import render
from pipeline.results.export import export
from pipeline.results.gold import parse_labels, read_gold, written_labels
from pipeline.results.label_view import View
from pipeline.results.review import review_run
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import LEDGER
from tests.results.answered_several import LABELS, SHARES, finished_several

EXPECTED = [f"{label}={share}" for label, share in zip(LABELS, SHARES, strict=True)]


def _calibrate(folder: Path, **options: Any) -> View:
    with Ledger.open(folder / "run" / LEDGER, write=True) as ledger:
        return calibrate_run(ledger, **options)["tags"].view


def _evaluate(folder: Path, **options: Any) -> dict[str, Any]:
    with Ledger.open(folder / "run" / LEDGER, write=False) as ledger:
        found: dict[str, Any] = evaluate(ledger, **options)["tasks"]["tags"]
        return found


def _exported(folder: Path, **options: Any) -> list[dict[str, Any]]:
    path = folder / "x.jsonl"
    with Ledger.open(folder / "run" / LEDGER, write=False) as ledger:
        export(ledger, path, **options)
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _gold(path: Path, truth: dict[str, list[str]]) -> Path:
    path.write_text(
        "".join(json.dumps({"id": name, "label": labels}) + "\n" for name, labels in truth.items()),
        encoding="utf-8",
    )
    return path


def _exact(rows: list[dict[str, Any]], truth: dict[str, list[str]]) -> float:
    return sum(row["tags"] == truth[row["id"]] for row in rows) / len(rows)


def test_expected_shares_are_each_labels_own(tmp_path: Path) -> None:
    truth = finished_several(tmp_path, 400)
    raw = _exact(_exported(tmp_path), truth)
    view = _calibrate(tmp_path, shares=EXPECTED)
    assert (view.calibration.method, view.threshold, view.final) == ("batch", None, True)
    rows = _exported(tmp_path)
    assert _exact(rows, truth) > raw + 0.3
    for label, share in zip(LABELS, SHARES, strict=True):
        assert sum(row["tags_probabilities"][label] for row in rows) / 400 == pytest.approx(share, abs=1e-3)
        assert all(0 <= row["tags_probabilities"][label] <= 1 for row in rows)
    assert _exact(_exported(tmp_path, view=0), truth) == raw


def test_nothing_is_assumed_unless_it_is_said(tmp_path: Path) -> None:
    finished_several(tmp_path)
    with pytest.raises(UsageError, match="half of them cannot be assumed"):
        _calibrate(tmp_path, method="batch")
    before = _exported(tmp_path)
    assert _calibrate(tmp_path).calibration.method == "none"
    after = _exported(tmp_path)
    assert [row["tags"] for row in after] == [row["tags"] for row in before]
    for one, other in zip(before, after, strict=True):
        assert one["tags_probabilities"] == pytest.approx(other["tags_probabilities"], abs=1e-9)


def test_gold_labels_calibrate_and_are_judged_without_themselves(tmp_path: Path) -> None:
    truth = finished_several(tmp_path, 300)
    fitted = dict(itertools.islice(truth.items(), 100))
    raw = _evaluate(tmp_path, gold=_gold(tmp_path / "all.jsonl", truth))["headline"]
    view = _calibrate(tmp_path, gold=_gold(tmp_path / "gold.jsonl", fitted))
    assert view.calibration.method == "gold"
    assert "100 documents with gold labels" in view.sentence
    found = _evaluate(tmp_path, gold=tmp_path / "all.jsonl")
    assert (found["judged"], found["cross_validated"], found["basis"]) == (
        300,
        100,
        "answers and cross-validation",
    )
    headline = {name: value["value"] for name, value in found["headline"].items()}
    assert headline["exact_match"] > raw["exact_match"]["value"] + 0.3
    assert headline["micro_f1"] > raw["micro_f1"]["value"]
    assert headline["calibration_error"] < 0.05 < raw["calibration_error"]["value"]
    assert "exact match" in "\n".join(render({"tasks": {"tags": found}, "plots": []}))


def test_figures_are_those_counted_by_hand(tmp_path: Path) -> None:
    truth = finished_several(tmp_path, 50)
    answers = {row["id"]: row["tags"] for row in _exported(tmp_path)}
    found = _evaluate(tmp_path, gold=_gold(tmp_path / "gold.jsonl", truth))
    both = sum(len(set(answers[name]) & set(labels)) for name, labels in truth.items())
    every = sum(len(answers[name]) + len(labels) for name, labels in truth.items())
    assert found["headline"]["micro_f1"]["value"] == pytest.approx(2 * both / every)
    assert (
        found["headline"]["exact_match"]["value"]
        == sum(answers[name] == labels for name, labels in truth.items()) / 50
    )
    for row in found["per_label"]:
        gold = [name for name, labels in truth.items() if row["label"] in labels]
        given = [name for name, labels in answers.items() if row["label"] in labels]
        assert (row["gold"], row["predicted"], row["right"]) == (
            len(gold),
            len(given),
            len(set(gold) & set(given)),
        )
    assert found["headline"]["macro_f1"]["value"] == pytest.approx(
        sum(row["f1"] for row in found["per_label"]) / 3
    )


def test_abstaining_is_by_the_least_certain_decision(tmp_path: Path) -> None:
    truth = finished_several(tmp_path, 400)
    view = _calibrate(
        tmp_path,
        gold=_gold(tmp_path / "gold.jsonl", dict(itertools.islice(truth.items(), 200))),
        target_accuracy=0.9,
    )
    assert view.threshold is not None
    rows = _exported(tmp_path)
    answered = [row for row in rows if row["tags"] is not None]
    assert 0 < len(answered) < 400
    assert _exact(answered, truth) > 0.85
    for row in rows:
        least = min(max(odds, 1 - odds) for odds in row["tags_probabilities"].values())
        assert (row["tags"] is None) == (least < view.threshold)
        assert row["tags_finish_reason"] == ("abstained" if row["tags"] is None else "stop")
    found = _evaluate(tmp_path, gold=_gold(tmp_path / "all.jsonl", truth))
    assert found["answered"] + found["abstained"] == 400
    assert found["headline"]["answered_exact_match"]["value"] > found["headline"]["exact_match"]["value"]


def test_a_label_that_gold_says_nothing_about_is_left_as_it_is(tmp_path: Path) -> None:
    truth = finished_several(tmp_path, 120)
    gold = {
        name: [label for label in labels if label != "money"]
        for name, labels in itertools.islice(truth.items(), 60)
    }
    view = _calibrate(tmp_path, gold=_gold(tmp_path / "gold.jsonl", gold))
    methods = [part["method"] for part in json.loads(view.calibration.to_json())["parts"]]
    assert methods == ["gold", "gold", "none"]
    assert "1 labels: all gold documents have one label" in view.sentence
    assert parse_calibration(view.calibration.to_json()) is not None
    with pytest.raises(LedgerError):
        parse_calibration('{"several": 9}')


@pytest.mark.parametrize(
    "cell",
    ["urgent|money", "urgent; money", '["urgent", "money"]', "money | urgent"],
    ids=["bar", "semicolon", "list", "order"],
)
def test_tables_name_several_labels(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "gold.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("id", "label"), ("a", cell), ("b", "[]"), ("c", ""), ("d", "legal")])
    assert read_gold([path], LABELS, multi=True) == {"a": ("urgent", "money"), "b": (), "d": ("legal",)}


@pytest.mark.parametrize("named", [(), ("a",), ("a", "b"), ("a;b", "c"), ("x|y",), ("[z",), ('"',)])
def test_written_labels_are_read_again(named: tuple[str, ...]) -> None:
    assert parse_labels(written_labels(named), [*named, "other"]) == named


@pytest.mark.parametrize("kind", [list, "|".join])
def test_labels_that_the_task_does_not_have_are_refused(
    tmp_path: Path, kind: Callable[[list[str]], Any]
) -> None:
    path = tmp_path / "gold.jsonl"
    path.write_text(json.dumps({"id": "a", "label": kind(["urgent", "nonsense"])}) + "\n")
    with pytest.raises(UsageError, match="'nonsense'"):
        read_gold([path], LABELS, multi=True)


def test_a_review_is_filled_in_and_becomes_gold(tmp_path: Path) -> None:
    truth = finished_several(tmp_path, 80)
    path = tmp_path / "review.csv"
    with Ledger.open(tmp_path / "run" / LEDGER, write=False) as ledger:
        facts = review_run(ledger, path, 20)
    assert facts["rows"] == 20
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    answers = {row["id"]: row["tags"] for row in _exported(tmp_path)}
    assert all(list(parse_labels(row["proposed_label"], LABELS)) == answers[row["id"]] for row in rows)
    assert all(0.5 <= float(row["probability"]) <= 1 for row in rows)
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows({**row, "label": written_labels(truth[row["id"]])} for row in rows)
    assert read_gold([path], LABELS, multi=True) == {row["id"]: tuple(truth[row["id"]]) for row in rows}
    assert _calibrate(tmp_path, gold=path).gold_labels
    with Ledger.open(tmp_path / "run" / LEDGER, write=False) as ledger:
        again = review_run(ledger, tmp_path / "again.csv", 80)
    assert (again["rows"], again["left_out"]) == (60, {"labelled already": 20})
