"""Calibrated answers are views over recorded scores: numbered, traceable, free of inference, and stated in
exports.
"""

from __future__ import annotations

import csv
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.results.calibrate import calibrate_run
from pipeline.results.calibrate.making import LEAST_BATCH, ViewOptions, make_view
from pipeline.results.export import export
from pipeline.results.gold import read_gold
from pipeline.results.label_view import view_in_force
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.escape import spreadsheet_text
from tests.programs import overnight
from tests.stores.ledger.ledgers import begun, documents, done, job

LABELS = ("world", "sports")
TASK = job(labels=[[name, None] for name in LABELS], score_tolerance=0.0)
COUNT = 200
_LOUD = 3.0  # how much the model favours the first label whatever the text


def _scores(number: int) -> dict[str, float]:
    """A biased model: it hears the truth, ``number`` being even or odd, and adds a bias and some noise."""
    heard = (1.0 if number % 2 == 0 else -1.0) + random.Random(number).gauss(0, 0.4)
    raw = {"world": heard + _LOUD, "sports": -heard}
    total = math.log(sum(math.exp(value) for value in raw.values()))
    return {name: value - total for name, value in raw.items()}


def _truth(number: int) -> str:
    return LABELS[number % 2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run directory with ``COUNT`` labelled documents, all of which the model itself calls world."""
    with Ledger.open(tmp_path / "ledger.sqlite", write=True) as opened:
        rows = documents(COUNT)
        run = begun(opened, rows, TASK)
        answers = []
        for number, row in enumerate(rows):
            scores = _scores(number)
            probabilities = {name: math.exp(value) for name, value in scores.items()}
            answers.append(done("topic", row.key, "world", probabilities=probabilities, scores=scores))
        opened.finish(run, answers)
    return tmp_path


@pytest.fixture
def ledger(folder: Path) -> Iterator[Ledger]:
    with Ledger.open(folder / "ledger.sqlite", write=True) as opened:
        yield opened


def _exported(ledger: Ledger, path: Path, **options: Any) -> list[dict[str, Any]]:
    export(ledger, path, **options)
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _right(rows: list[dict[str, Any]]) -> float:
    return sum(row["topic"] == _truth(number) for number, row in enumerate(rows)) / len(rows)


def _gold(path: Path, numbers: range) -> Path:
    path.write_text(
        "".join(json.dumps({"id": f"d{number:06}", "label": _truth(number)}) + "\n" for number in numbers)
    )
    return path


def test_over_the_batch(ledger: Ledger, tmp_path: Path) -> None:
    assert _right(_exported(ledger, tmp_path / "raw.jsonl")) < 0.6
    view = make_view(ledger, ledger.tasks()[0], ViewOptions("batch"))
    assert (view.number, view.calibration.method, view.final) == (1, "batch", True)
    rows = _exported(ledger, tmp_path / "x.jsonl")
    assert _right(rows) > 0.95
    assert {row["topic_calibration"] for row in rows} == {"view 1: batch"}
    for row in rows:
        assert sum(row["topic_probabilities"].values()) == pytest.approx(1, abs=1e-6)
        assert row["topic_probability"] == pytest.approx(max(row["topic_probabilities"].values()))


def test_earlier_views_stay(ledger: Ledger, tmp_path: Path) -> None:
    make_view(ledger, ledger.tasks()[0], ViewOptions("batch"))
    gold = _gold(tmp_path / "gold.jsonl", range(60))
    made = calibrate_run(ledger, gold=gold)["topic"].view
    assert (made.number, made.calibration.method, made.calibration.gold) == (2, "gold", 60)
    assert calibrate_run(ledger, gold=gold)["topic"].view.number == 2  # the same again is not another one
    assert {row["topic_calibration"] for row in _exported(ledger, tmp_path / "x.jsonl", view=1)} == {
        "view 1: batch"
    }
    raw = _exported(ledger, tmp_path / "raw.jsonl", view=0)
    assert "topic_calibration" not in raw[0]
    assert {row["topic"] for row in raw} == {"world"}
    with pytest.raises(UsageError, match="no view 7"):
        export(ledger, tmp_path / "y.jsonl", view=7)


def test_views_of_every_format_are_replaced_by_later_exports(ledger: Ledger, tmp_path: Path) -> None:
    for ending in ("jsonl", "csv", "parquet"):
        export(ledger, tmp_path / f"x.{ending}")
    make_view(ledger, ledger.tasks()[0], ViewOptions("batch"))
    for ending in ("jsonl", "csv", "parquet"):
        assert export(ledger, tmp_path / f"x.{ending}").rows == COUNT
        assert export(ledger, tmp_path / f"x.{ending}").rows == COUNT
    with (tmp_path / "x.csv").open(newline="") as stream:
        assert next(csv.DictReader(stream))["topic_calibration"] == "view 1: batch"


def test_target_accuracy_abstains(ledger: Ledger, tmp_path: Path) -> None:
    gold = _gold(tmp_path / "gold.jsonl", range(150))
    view = calibrate_run(ledger, gold=gold, target_accuracy=0.9)["topic"].view
    assert view.threshold is not None
    assert view.threshold < 1
    rows = _exported(ledger, tmp_path / "x.jsonl")
    answered = [row["topic"] == _truth(number) for number, row in enumerate(rows) if row["topic"] is not None]
    assert len(answered) > 0.4 * COUNT
    assert sum(answered) / len(answered) > 0.88
    assert {row["topic_finish_reason"] for row in rows if row["topic"] is None} <= {"abstained"}
    assert {row["topic_status"] for row in rows} == {"done"}


def test_nothing_qualifies(ledger: Ledger, tmp_path: Path) -> None:
    gold = _gold(tmp_path / "gold.jsonl", range(20))
    asked = {"gold": gold, "target_accuracy": 0.999}
    made = calibrate_run(ledger, **asked)["topic"]
    assert not made.is_shown
    assert None not in {row["topic"] for row in _exported(ledger, tmp_path / "x.jsonl")}
    assert "abstain" in made.view.sentence
    again = calibrate_run(ledger, **asked, show_anyway=True)["topic"]
    assert (again.view.number, again.is_shown) == (made.view.number, True)
    assert {row["topic"] for row in _exported(ledger, tmp_path / "x.jsonl")} == {None}


def test_few_documents_are_left_as_they_are(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "few.sqlite", write=True) as ledger:
        rows = documents(LEAST_BATCH - 1)
        run = begun(ledger, rows, TASK)
        ledger.finish(
            run, [done("topic", row.key, scores=_scores(number)) for number, row in enumerate(rows)]
        )
        assert make_view(ledger, ledger.tasks()[0], ViewOptions()).calibration.method == "none"


def test_a_ledger_of_before_views_is_read(folder: Path) -> None:
    import sqlite3

    with sqlite3.connect(folder / "ledger.sqlite") as connection:
        connection.execute("DROP TABLE views")
    with Ledger.open(folder / "ledger.sqlite", write=False) as old:
        assert view_in_force(old, old.tasks()[0]) is None
    with Ledger.open(folder / "ledger.sqlite", write=True) as old:
        assert make_view(old, old.tasks()[0], ViewOptions("batch")).number == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "d000001", "label": "politics"}], "does not have"),
        ([{"id": "d000001", "label": "world"}, {"id": "d000001", "label": "sports"}], "different labels"),
        ([{"id": "d000001", "label": ""}], "no gold labels"),
    ],
)
def test_wrong_gold(ledger: Ledger, tmp_path: Path, rows: list[dict[str, str]], message: str) -> None:
    path = tmp_path / "gold.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match=message):
        calibrate_run(ledger, gold=path)


def test_only_labels_can_be_calibrated(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "other.sqlite", write=True) as ledger:
        begun(ledger, documents(2), job("summary", kind="summarize"))
        with pytest.raises(UsageError, match="only label tasks"):
            calibrate_run(ledger, names=["summary"])


def _loose(path: Path, odds: float, tolerance: float = 0.01) -> Ledger:
    """A run with ``score_tolerance``, in one document of which the second label has the probability
    ``odds``.
    """
    ledger = Ledger.open(path, write=True)
    rows = documents(40)
    run = begun(ledger, rows, job(labels=[[name, None] for name in LABELS], score_tolerance=tolerance))
    scores = [{"world": math.log(0.6), "sports": math.log(0.4)}] * 39 + [
        {"world": math.log(1 - odds), "sports": math.log(odds)}
    ]
    ledger.finish(
        run, [done("topic", row.key, scores=score) for row, score in zip(rows, scores, strict=True)]
    )
    return ledger


def test_scores_that_may_be_bounds_are_not_calibrated(tmp_path: Path) -> None:
    with _loose(tmp_path / "l.sqlite", 0.009) as ledger:
        with pytest.raises(UsageError, match="labels of 1 of 40 documents unscored"):
            calibrate_run(ledger)
        view = calibrate_run(ledger, method="none", abstain_below=0.7)["topic"].view
        assert [row["topic"] for row in _exported(ledger, tmp_path / "x.jsonl")].count(None) == 39
        assert view.threshold == 0.7


def test_recorded_scores_above_the_tolerance_are_the_models_own(tmp_path: Path) -> None:
    with _loose(tmp_path / "l.sqlite", 0.02) as ledger:
        assert calibrate_run(ledger)["topic"].view.calibration.method == "batch"


def test_the_order_of_the_gold_file_changes_nothing(ledger: Ledger, tmp_path: Path) -> None:
    first = calibrate_run(ledger, gold=_gold(tmp_path / "gold.jsonl", range(60)))["topic"].view
    again = calibrate_run(ledger, gold=_gold(tmp_path / "turned.jsonl", range(59, -1, -1)))["topic"].view
    assert again.number == first.number == 1
    assert again.calibration.to_json() == first.calibration.to_json()


def test_gold_labels_that_were_not_used_are_counted(ledger: Ledger, tmp_path: Path) -> None:
    view = calibrate_run(ledger, gold=_gold(tmp_path / "gold.jsonl", range(COUNT - 20, COUNT + 5)))[
        "topic"
    ].view
    assert len(view.gold_labels) == 20
    assert "of 25 gold labels left out: 5 not among the finished documents" in view.sentence


def test_what_the_model_said_itself_stays_to_be_seen(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.sqlite", write=True) as ledger:
        rows = documents(2)
        run = begun(ledger, rows, TASK)
        odds = {"world": 0.6, "sports": 0.4}
        logs = {name: math.log(value) for name, value in odds.items()}
        ledger.finish(
            run,
            [
                done("topic", row.key, None, finish_reason="abstained", probabilities=odds, scores=logs)
                for row in rows
            ],
        )
        assert {row["topic"] for row in _exported(ledger, tmp_path / "x.jsonl")} == {None}
        raw = _exported(ledger, tmp_path / "raw.jsonl", view=0)
        assert {(row["topic"], row["topic_finish_reason"]) for row in raw} == {("world", "stop")}


@pytest.mark.parametrize("name", ["=a", "+a", "-1", "@a", "\ta", "'a", "a"])
def test_ids_and_labels_come_back_from_our_own_tables(tmp_path: Path, name: str) -> None:
    path = tmp_path / "gold.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(
            [("id", "label"), (spreadsheet_text(name), spreadsheet_text("-x")), ("b", "-y")]
        )
    assert read_gold([path], ("-x", "-y")) == {name: "-x", "b": "-y"}
    plain = tmp_path / "gold.jsonl"
    plain.write_text(json.dumps({"id": f"'{name}", "label": "-x"}) + "\n")
    assert read_gold([plain], ("-x", "-y")) == {f"'{name}": "-x"}


def test_command(folder: Path, tmp_path: Path) -> None:
    gold = _gold(tmp_path / "gold.jsonl", range(60))
    done = overnight("calibrate", str(folder), "--gold", str(gold), "--json")
    facts = json.loads(done.stdout)["tasks"]["topic"]
    assert facts["method"] == "gold"
    assert facts["final"] is True
    assert "60 gold labels" in facts["sentence"]
    assert f"labels are shown through view {facts['view']}" in (folder / "report.md").read_text(
        encoding="utf-8"
    )
    wrong = overnight("calibrate", str(folder), "--share", "world", code=2)
    assert "LABEL=SHARE" in wrong.stderr


def test_the_command_loads_no_model_library(folder: Path, tmp_path: Path) -> None:
    code = """
import sys
from pipeline.cli.main import app
app(["calibrate", sys.argv[1], "--gold", sys.argv[2], "--target-accuracy", "0.9"], standalone_mode=False)
assert "sklearn" in sys.modules
heavy = ("torch", "transformers", "accelerate", "bitsandbytes", "datasets", "prefect")
print([name for name in heavy if name in sys.modules])
"""
    gold = _gold(tmp_path / "gold.jsonl", range(60))
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(gold)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
