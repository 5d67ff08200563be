"""Evaluation of finished runs: figures that can be counted by hand, honest about labels that were seen
before.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.results.calibrate import calibrate_run
from pipeline.results.evaluate import evaluate
from pipeline.results.export import export
from pipeline.results.report import build_report, render_markdown
from pipeline.results.report.evaluation import keep_evaluation
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import LEDGER
from tests.programs import overnight
from tests.quality.tables import LABELS
from tests.results.answered import finished, gold_file
from tests.stores.ledger.ledgers import document, done, read

ROOT = Path(__file__).parents[2]


def _evaluate(folder: Path, **options: Any) -> dict[str, Any]:
    with Ledger.open(folder / "run" / LEDGER, write=False) as ledger:
        return evaluate(ledger, **options)


def _calibrate(folder: Path, **options: Any) -> None:
    with Ledger.open(folder / "run" / LEDGER, write=True) as ledger:
        calibrate_run(ledger, names=["topic"], **options)


def _answers(folder: Path) -> dict[str, str]:
    with Ledger.open(folder / "run" / LEDGER, write=False) as ledger:
        return {row.input.id: row.results["topic"].value for row in ledger.rows()}


def test_raw_figures_are_those_counted_by_hand(tmp_path: Path) -> None:
    truth = finished(tmp_path)
    found = _evaluate(tmp_path, gold=gold_file(tmp_path / "gold.jsonl", truth))["tasks"]["topic"]
    right = sum(value == truth[name] for name, value in _answers(tmp_path).items())
    accuracy = found["headline"]["accuracy"]
    assert accuracy["value"] == pytest.approx(right / 200)
    assert accuracy["low"] < accuracy["value"] < accuracy["high"]
    assert found["judged"] == found["answered"] == sum(map(sum, found["confusion"])) == 200
    assert sum(row["right"] for row in found["per_label"]) == right
    assert sum(one["count"] for one in found["reliability"]) == 200
    assert found["coverage_curve"][-1]["coverage"] == 1
    assert found["coverage_curve"][-1]["accuracy"] == pytest.approx(right / 200)
    assert found["basis"] == "answers"


def test_gold_rows_that_prove_nothing_are_left_out_and_counted(tmp_path: Path) -> None:
    truth = finished(tmp_path, examples=("d3", "d4"), fail=("d5",))
    found = _evaluate(tmp_path, gold=gold_file(tmp_path / "gold.jsonl", {**truth, "stranger": "world"}))[
        "tasks"
    ]["topic"]
    assert found["left_out"] == {
        "not in the run": 1,
        "shown to the model as examples": 2,
        "without an answer (failed)": 1,
    }
    assert found["judged"] == 197


def test_views_are_judged_by_number(tmp_path: Path) -> None:
    truth = finished(tmp_path, 400)
    _calibrate(tmp_path, method="batch")
    gold = gold_file(tmp_path / "gold.jsonl", truth)
    latest = _evaluate(tmp_path, gold=gold)["tasks"]["topic"]
    raw = _evaluate(tmp_path, gold=gold, view=0)["tasks"]["topic"]
    assert (latest["view"], raw["view"]) == (1, 0)
    assert latest["headline"]["accuracy"]["value"] > raw["headline"]["accuracy"]["value"] + 0.1


def _kept(folder: Path, **options: Any) -> float:
    """The accuracy that ``overnight evaluate`` tells, once it is kept for the report."""
    facts = _evaluate(folder, **options)
    keep_evaluation(folder / "run", facts)
    accuracy: float = facts["tasks"]["topic"]["headline"]["accuracy"]["value"]
    return accuracy


def _reported(folder: Path) -> tuple[float | None, str]:
    """The accuracy in the report, None where it shows none; and its words."""
    with Ledger.open(folder / "run" / LEDGER, write=False) as ledger:
        facts = build_report(ledger, folder / "run")
    words = render_markdown(facts)
    task = facts["evaluation"]["tasks"].get("topic")
    assert ("| accuracy |" in words) == (task is not None)
    return None if task is None else task["headline"]["accuracy"]["value"], words


def _exported(folder: Path, truth: dict[str, str]) -> float:
    """The share of the export's answers that are right."""
    with Ledger.open(folder / "run" / LEDGER, write=False) as ledger:
        export(ledger, folder / "out.jsonl")
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    return sum(row["topic"] == truth[row["id"]] for row in rows) / len(rows)


def test_figures_are_of_the_view_that_is_shown(tmp_path: Path) -> None:
    """On the terminal and in the report, beside the answers that the export has."""
    truth = finished(tmp_path, 400)
    gold = gold_file(tmp_path / "gold.jsonl", truth)
    raw = _kept(tmp_path, gold=gold)
    assert _reported(tmp_path)[0] == raw == pytest.approx(_exported(tmp_path, truth))
    _calibrate(tmp_path, method="batch")
    figure, words = _reported(tmp_path)
    assert figure is None
    assert "topic: what the model said itself was judged, which is not what is shown" in words
    calibrated = _kept(tmp_path, gold=gold)
    assert _reported(tmp_path)[0] == calibrated == pytest.approx(_exported(tmp_path, truth))
    assert calibrated > raw + 0.1
    _calibrate(tmp_path, method="none")
    assert _kept(tmp_path, gold=gold, view=1) == calibrated
    figure, words = _reported(tmp_path)
    assert figure is None
    assert "topic: view 1 was judged, which is not what is shown" in words
    assert _kept(tmp_path, gold=gold) == _reported(tmp_path)[0] == pytest.approx(raw)


def test_labels_a_view_was_fitted_on_are_judged_by_cross_validation(tmp_path: Path) -> None:
    truth = finished(tmp_path, 300)
    fitted = dict(itertools.islice(truth.items(), 100))
    gold = gold_file(tmp_path / "gold.jsonl", fitted)
    _calibrate(tmp_path, gold=gold)
    with Ledger.open(tmp_path / "run" / LEDGER, write=False) as ledger:
        recorded = json.loads(ledger.views("topic")[0].calibration)["cross_validation"]
    found = _evaluate(tmp_path, gold=gold)["tasks"]["topic"]
    assert found["basis"] == "cross-validation"
    assert (
        "100 of the 100 documents compared are among them: they are judged by cross-validation"
        in found["notes"]
    )
    assert found["headline"]["accuracy"]["value"] == pytest.approx(recorded["accuracy"])
    assert found["headline"]["calibration_error"]["value"] == pytest.approx(recorded["calibration_error"])
    assert found["judged"] == 100
    fresh = gold_file(tmp_path / "fresh.jsonl", dict(itertools.islice(truth.items(), 100, None)))
    other = _evaluate(tmp_path, gold=fresh)["tasks"]["topic"]
    assert (other["basis"], other["judged"]) == ("answers", 200)
    assert "100 gold labels" in other["notes"][0]


def test_without_a_file_the_kept_labels_judge(tmp_path: Path) -> None:
    truth = finished(tmp_path, 300)
    gold = gold_file(tmp_path / "gold.jsonl", dict(itertools.islice(truth.items(), 100)))
    with pytest.raises(UsageError, match="the run keeps no gold labels: give --gold FILE"):
        _evaluate(tmp_path)
    _calibrate(tmp_path, gold=gold)
    kept, given = _evaluate(tmp_path)["tasks"], _evaluate(tmp_path, gold=gold)["tasks"]
    assert list(kept) == ["topic"]
    for name in ("basis", "judged", "left_out", "confusion", "notes"):
        assert kept["topic"][name] == given["topic"][name]
    with pytest.raises(UsageError, match="give --references FILE"):
        _evaluate(tmp_path, names=["summary"])


def test_gold_files_that_overlap_are_judged_by_cross_validation_where_they_do(tmp_path: Path) -> None:
    truth = finished(tmp_path, 300)
    _calibrate(tmp_path, gold=gold_file(tmp_path / "gold.jsonl", dict(itertools.islice(truth.items(), 100))))
    both = _evaluate(
        tmp_path, gold=gold_file(tmp_path / "b.jsonl", dict(itertools.islice(truth.items(), 50, 300)))
    )["tasks"]["topic"]
    assert (both["basis"], both["judged"], both["cross_validated"]) == (
        "answers and cross-validation",
        250,
        50,
    )
    known = _evaluate(
        tmp_path, gold=gold_file(tmp_path / "k.jsonl", dict(itertools.islice(truth.items(), 50, 100)))
    )["tasks"]["topic"]
    fresh = _evaluate(
        tmp_path, gold=gold_file(tmp_path / "f.jsonl", dict(itertools.islice(truth.items(), 100, 300)))
    )["tasks"]["topic"]
    assert (known["basis"], fresh["basis"]) == ("cross-validation", "answers")
    right = [found["headline"]["accuracy"]["value"] * found["judged"] for found in (both, known, fresh)]
    assert right[0] == pytest.approx(right[1] + right[2])


def test_cross_validation_stays_when_documents_are_added(tmp_path: Path) -> None:
    truth = finished(tmp_path, 200)
    gold = gold_file(tmp_path / "gold.jsonl", dict(itertools.islice(truth.items(), 100)))
    _calibrate(tmp_path, gold=gold, shares=["world=0.7", "sports=0.1", "business=0.1", "science=0.1"])
    before = _evaluate(tmp_path, gold=gold)["tasks"]["topic"]
    with Ledger.open(tmp_path / "run" / LEDGER, write=True) as ledger:
        more = document("more", "another text")
        read(ledger, ledger.begin_run({}), [more], complete=False)
        scores = dict.fromkeys(LABELS, -1.4)
        ledger.finish(
            2, [done("topic", more.key, "world", probabilities=dict.fromkeys(LABELS, 0.25), scores=scores)]
        )
    after = _evaluate(tmp_path, gold=gold)["tasks"]["topic"]
    assert after["basis"] == before["basis"] == "cross-validation"
    assert after["headline"] == before["headline"]


def test_abstained_answers_are_counted_and_are_not_right(tmp_path: Path) -> None:
    truth = finished(tmp_path, 300)
    _calibrate(tmp_path, method="batch", abstain_below=0.7)
    found = _evaluate(tmp_path, gold=gold_file(tmp_path / "gold.jsonl", truth))["tasks"]["topic"]
    assert found["abstained"] > 0
    assert found["abstained"] + found["answered"] == 300
    assert sum(row[-1] for row in found["confusion"]) == found["abstained"]
    headline = {name: value["value"] for name, value in found["headline"].items()}
    assert headline["coverage"] == pytest.approx(found["answered"] / 300)
    assert headline["accuracy"] == pytest.approx(headline["answered_accuracy"] * headline["coverage"])


def test_summaries_are_measured_against_references_and_the_source(tmp_path: Path) -> None:
    finished(tmp_path, 20)
    texts = [json.loads(line) for line in (tmp_path / "in.jsonl").read_text(encoding="utf-8").splitlines()]
    references = tmp_path / "references.jsonl"
    rows = [{"id": row["id"], "summary": " ".join(row["text"].split()[:3])} for row in texts[:8]] + [
        {"id": "stranger", "summary": "x"}
    ]
    references.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts[1:]), encoding="utf-8")
    found = _evaluate(tmp_path, references=references)["tasks"]["summary"]
    assert found["judged"] == 7
    assert found["left_out"] == {"not in the run": 1, "no longer in the source": 1}
    headline = {name: value["value"] for name, value in found["headline"].items()}
    assert headline["rouge1"] == headline["rouge2"] == headline["rouge_l"] == headline["copied"] == 1
    assert headline["words"] == 3
    assert headline["coverage"] > 0


@pytest.mark.parametrize(("kind", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_plots_are_written(tmp_path: Path, kind: str, magic: bytes) -> None:
    gold = gold_file(tmp_path / "gold.jsonl", finished(tmp_path))
    _calibrate(tmp_path, method="batch", abstain_below=0.6)
    facts = _evaluate(tmp_path, gold=gold, plots=tmp_path / "plots", plot_format=kind)
    names = {Path(path).name for path in facts["plots"]}
    assert names == {f"topic-{title}.{kind}" for title in ("reliability", "coverage", "confusion")}
    assert all(Path(path).read_bytes().startswith(magic) for path in facts["plots"])


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    truth = finished(tmp_path, 20)
    gold = gold_file(tmp_path / "gold.jsonl", truth)
    with pytest.raises(UsageError, match="give --gold FILE"):
        _evaluate(tmp_path)
    with pytest.raises(UsageError, match="the run keeps no gold labels of task 'topic'; give --gold FILE"):
        _evaluate(tmp_path, names=["topic"])
    with pytest.raises(UsageError, match="no task 'tpic'"):
        _evaluate(tmp_path, gold=gold, names=["tpic"])
    with pytest.raises(UsageError, match="give --references FILE"):
        _evaluate(tmp_path, gold=gold, names=["summary"])
    with pytest.raises(UsageError, match="choose one of png, svg"):
        _evaluate(tmp_path, gold=gold, plots=tmp_path, plot_format="bmp")
    with pytest.raises(UsageError, match="1 not in the run of 1 gold rows"):
        _evaluate(tmp_path, gold=gold_file(tmp_path / "other.jsonl", {"stranger": "world"}))
    with pytest.raises(UsageError, match="has no view 3"):
        _evaluate(tmp_path, gold=gold, view=3)


def test_a_missing_extra_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gold = gold_file(tmp_path / "gold.jsonl", finished(tmp_path, 20))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"overnight\[evaluate\]"):
        _evaluate(tmp_path, gold=gold, plots=tmp_path / "plots")
    assert not (tmp_path / "plots").exists()


def test_the_command_prints_json_or_a_table(tmp_path: Path) -> None:
    gold = gold_file(tmp_path / "gold.jsonl", finished(tmp_path, 60))
    command = ("evaluate", str(tmp_path / "run"), "--gold", str(gold))
    facts = json.loads(overnight(*command, "--json").stdout)
    assert facts["tasks"]["topic"]["judged"] == 60
    table = overnight(*command).stdout
    assert "macro f1" in table
    assert "precision" in table
    refused = overnight(*command, "--view", "9", code=2)
    assert refused.stderr.startswith("overnight: ")


def test_the_report_shows_the_last_evaluation_and_its_plots(tmp_path: Path) -> None:
    gold = gold_file(tmp_path / "gold.jsonl", finished(tmp_path, 60))
    command = ("evaluate", str(tmp_path / "run"), "--gold", str(gold))
    overnight(*command, "--plots")
    report = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    for name in ("reliability", "coverage", "confusion"):
        assert f"![topic {name}](plots/topic-{name}.png)" in report
        assert (tmp_path / "run" / "plots" / f"topic-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "| macro f1 |" in report
    assert "- 60 documents compared" in report
    told = overnight("report", str(tmp_path / "run"), "--json")
    facts = json.loads(told.stdout)["evaluation"]
    assert facts["tasks"]["topic"]["judged"] == 60
    assert facts["plots"] == [f"plots/topic-{name}.png" for name in ("reliability", "coverage", "confusion")]
    overnight(*command, "--plots-to", str(tmp_path / "else"))
    assert "![" not in (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert len(list((tmp_path / "else").iterdir())) == 3
