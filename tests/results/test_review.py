"""Review and sample: files that a person fills in and that are gold files then."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import parse_config
from pipeline.errors import UsageError
from pipeline.results.calibrate import calibrate_run
from pipeline.results.gold import read_gold
from pipeline.results.review import REVIEW_COLUMNS, SAMPLE_COLUMNS, TEXT_CHARACTERS, review_run, sample_source
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.escape import from_spreadsheet, spreadsheet_text
from pipeline.system.run_directory import LEDGER
from tests.programs import overnight
from tests.quality.tables import LABELS
from tests.results.answered import finished

ROOT = Path(__file__).parents[2]


def _review(folder: Path, count: int = 10, **options: Any) -> dict[str, Any]:
    with Ledger.open(folder / "run" / LEDGER, write=False) as ledger:
        return review_run(ledger, folder / "review.csv", count, **options)


def _config(folder: Path) -> Any:
    return parse_config(
        {
            "model": {"id": "scripted"},
            "source": {"path": str(folder / "in.jsonl")},
            "run": {"directory": str(folder / "run")},
            "tasks": [{"name": "topic", "kind": "label", "labels": list(LABELS)}],
        }
    )


def _source(folder: Path, rows: list[dict[str, str]]) -> None:
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _fill(path: Path, gold: dict[str, str], count: int | None = None) -> None:
    """What a person does: the first ``count`` rows get their label."""
    rows = _rows(path)
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]), lineterminator="\r\n")
        table.writeheader()
        table.writerows(
            {**row, "label": gold[row["id"]] if place < (count or len(rows)) else ""}
            for place, row in enumerate(rows)
        )


def test_a_filled_in_review_is_a_gold_file(tmp_path: Path) -> None:
    truth = finished(tmp_path, 120)
    facts = _review(tmp_path, 30)
    rows = _rows(tmp_path / "review.csv")
    assert facts["rows"] == len(rows) == 30
    assert tuple(rows[0]) == REVIEW_COLUMNS
    assert all(
        row["label"] == "" and row["proposed_label"] in LABELS and row["reason"] and row["text"]
        for row in rows
    )
    assert all(
        row["top_labels"].startswith(f"{row['proposed_label']} {float(row['probability']):.2f}")
        for row in rows
    )
    _fill(tmp_path / "review.csv", truth, 20)
    gold = read_gold([tmp_path / "review.csv"], LABELS)
    assert gold == {row["id"]: truth[row["id"]] for row in rows[:20]}
    with Ledger.open(tmp_path / "run" / LEDGER, write=True) as ledger:
        view = calibrate_run(ledger, names=["topic"], gold=tmp_path / "review.csv")["topic"].view
    assert view.calibration.gold == 20


def test_a_review_shows_answers_through_the_view_in_force_and_prefers_uncertain_ones(tmp_path: Path) -> None:
    finished(tmp_path, 200)
    with Ledger.open(tmp_path / "run" / LEDGER, write=True) as ledger:
        view = calibrate_run(ledger, names=["topic"], method="batch", abstain_below=0.9)["topic"].view
        results = {row.input.id: row.results["topic"] for row in ledger.rows()}
    _review(tmp_path, 20)
    rows = _rows(tmp_path / "review.csv")
    for row in rows:
        known = view.apply([results[row["id"]]])[0].probabilities
        assert known is not None
        assert float(row["probability"]) == pytest.approx(max(known.values()), abs=1e-4)
        assert row["proposed_label"] == max(known, key=lambda name: known[name])
    every = [max((shown.probabilities or {}).values()) for shown in view.apply(list(results.values()))]
    assert sum(float(row["probability"]) for row in rows) / 20 < sum(every) / 200


def test_a_review_leaves_out_what_cannot_become_gold(tmp_path: Path) -> None:
    finished(tmp_path, 12, examples=("d3",))
    rows = [json.loads(line) for line in (tmp_path / "in.jsonl").read_text(encoding="utf-8").splitlines()]
    _source(tmp_path, rows[1:])
    facts = _review(tmp_path, 50)
    assert facts["left_out"] == {"shown to the model as examples": 1, "no longer in the source": 1}
    assert {row["id"] for row in _rows(tmp_path / "review.csv")} == {row["id"] for row in rows} - {"d0", "d3"}


def test_a_review_skips_what_is_labelled_already(tmp_path: Path) -> None:
    truth = finished(tmp_path, 60)
    _review(tmp_path, 20)
    _fill(tmp_path / "review.csv", truth, 15)
    first = [row["id"] for row in _rows(tmp_path / "review.csv")][:15]
    (tmp_path / "review.csv").rename(tmp_path / "filled.csv")
    facts = _review(tmp_path, 60, gold=[tmp_path / "filled.csv"])
    assert (facts["rows"], facts["left_out"]) == (45, {"labelled already": 15})
    assert not set(first) & {row["id"] for row in _rows(tmp_path / "review.csv")}
    with Ledger.open(tmp_path / "run" / LEDGER, write=True) as ledger:
        calibrate_run(ledger, names=["topic"], gold=tmp_path / "filled.csv")
    assert _review(tmp_path, 60, force=True)["left_out"] == {"labelled already": 15}
    with pytest.raises(UsageError, match="there is no gold file"):
        _review(tmp_path, 60, gold=[tmp_path / "gone.csv"])


@pytest.mark.parametrize("mark", ["=", "+", "-", "@"])
def test_ids_that_a_spreadsheet_would_compute_make_the_round_trip(tmp_path: Path, mark: str) -> None:
    truth = finished(tmp_path, 40, names=mark + "d{}")
    _review(tmp_path, 12)
    rows = _rows(tmp_path / "review.csv")
    assert all(row["id"].startswith(f"'{mark}") for row in rows)
    _fill(tmp_path / "review.csv", {f"'{name}": label for name, label in truth.items()})
    gold = read_gold([tmp_path / "review.csv"], LABELS)
    assert gold == {row["id"][1:]: truth[row["id"][1:]] for row in rows}
    with Ledger.open(tmp_path / "run" / LEDGER, write=True) as ledger:
        assert (
            len(
                calibrate_run(ledger, names=["topic"], gold=tmp_path / "review.csv")["topic"].view.gold_labels
            )
            == 12
        )


def test_filled_in_labels_are_not_overwritten(tmp_path: Path) -> None:
    truth = finished(tmp_path, 30)
    _review(tmp_path)
    _review(tmp_path)  # an untouched one is
    _fill(tmp_path / "review.csv", truth, 1)
    before = (tmp_path / "review.csv").read_bytes()
    with pytest.raises(UsageError, match="1 labels filled in"):
        _review(tmp_path)
    assert (tmp_path / "review.csv").read_bytes() == before
    _review(tmp_path, force=True)
    assert all(row["label"] == "" for row in _rows(tmp_path / "review.csv"))
    (tmp_path / "review.csv").write_text("something else\n", encoding="utf-8")
    with pytest.raises(UsageError, match="not an untouched file of this command"):
        _review(tmp_path)


def test_formulas_are_shown_and_long_texts_cut(tmp_path: Path) -> None:
    _source(
        tmp_path,
        [{"id": f"d{n}", "text": f"=HYPERLINK({n})"} for n in range(3)]
        + [{"id": "long", "text": "word " * 9_000}],
    )
    sample_source(_config(tmp_path), tmp_path / "sample.csv", 10)
    texts = {row["id"]: row["text"] for row in _rows(tmp_path / "sample.csv")}
    assert texts["d0"] == "'=HYPERLINK(0)"
    assert len(texts["long"]) == TEXT_CHARACTERS


@pytest.mark.parametrize("text", ["=1+1", "-5", "+x", "@user", "\ttab", "plain", "it's", "'quoted'", ""])
def test_what_a_cell_was_made_of_comes_back(text: str) -> None:
    assert from_spreadsheet(spreadsheet_text(text)) == text


def test_a_sample_is_spread_out_and_a_gold_file_once_filled_in(tmp_path: Path) -> None:
    texts = {
        "world": "treaty border minister",
        "sports": "match goal striker",
        "science": "telescope atom planet",
    }
    rows = [
        {"id": f"{name}{n}", "text": f'{words} {n}\nline two, "quoted"'}
        for name, words in texts.items()
        for n in range(40)
    ]
    _source(tmp_path, rows)
    facts = sample_source(_config(tmp_path), tmp_path / "sample.csv", 6)
    picked = _rows(tmp_path / "sample.csv")
    assert facts["rows"] == len(picked) == 6
    assert facts["read"] == {"documents": 120}
    assert tuple(picked[0]) == SAMPLE_COLUMNS
    assert {row["id"].rstrip("0123456789") for row in picked} == set(texts)
    originals = {row["id"]: row["text"] for row in rows}
    assert all(row["text"] == originals[row["id"]] for row in picked)
    truth = {row["id"]: row["id"].rstrip("0123456789") for row in rows}
    _fill(tmp_path / "sample.csv", truth)
    assert read_gold([tmp_path / "sample.csv"], LABELS) == {row["id"]: truth[row["id"]] for row in picked}


def test_places_that_must_not_be_written_to_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,text\na,b\n", encoding="utf-8")
    config = _config(tmp_path).model_copy(
        update={"source": _config(tmp_path).source.model_copy(update={"path": str(tmp_path / "in.csv")})}
    )
    with pytest.raises(UsageError, match="input of the run"):
        sample_source(config, tmp_path / "in.csv", 5, force=True)
    with pytest.raises(UsageError, match=r"must end in \.csv"):
        sample_source(config, tmp_path / "sample.xlsx", 5)


def test_several_or_unknown_tasks_are_a_sentence(tmp_path: Path) -> None:
    finished(tmp_path, 12)
    with pytest.raises(UsageError, match="no label task 'summary'"):
        _review(tmp_path, name="summary")


def test_the_commands_print_json(tmp_path: Path) -> None:
    finished(tmp_path, 40)
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(_config(tmp_path).model_dump(mode="json")), encoding="utf-8")
    for name, place in (("review", tmp_path / "run"), ("sample", config)):
        command = (name, str(place), "-o", str(tmp_path / f"{name}.csv"), "--count", "5")
        assert json.loads(overnight(*command, "--json").stdout)["rows"] == 5
        assert len(_rows(tmp_path / f"{name}.csv")) == 5
        assert "5 documents written" in overnight(*command).stdout
