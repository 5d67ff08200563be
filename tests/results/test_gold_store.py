"""A run keeps the gold labels that it was given: a second calibration forgets none, conflicts are refused,
and what the configuration's files say follows the files.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import parse_config
from pipeline.errors import UsageError
from pipeline.records import TaskJob
from pipeline.results.after_run import settle_answers
from pipeline.results.calibrate import Calibrated, calibrate_run
from pipeline.results.gold_store import kept_gold, list_gold, remove_gold
from pipeline.results.review import review_run
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import LEDGER
from tests.quality.tables import LABELS
from tests.results.answered import finished, gold_file
from tests.results.answered_several import finished_several
from tests.stores.ledger.ledgers import document, done, read

_LACKED = "world"


def _open(folder: Path) -> Ledger:
    return Ledger.open(folder / "run" / LEDGER, write=True)


def _calibrate(folder: Path, *gold: Path, **options: Any) -> Calibrated:
    with _open(folder) as ledger:
        return calibrate_run(ledger, gold=gold, names=["topic"], **options)["topic"]


def _part(path: Path, truth: dict[str, str], first: int, last: int) -> Path:
    return gold_file(path, dict(itertools.islice(truth.items(), first, last)))


def _counts(made: Calibrated) -> tuple[int, int, int]:
    assert made.gold is not None
    return made.gold.kept, made.gold.new, made.gold.replaced


def _kept(folder: Path) -> dict[str, Any]:
    with _open(folder) as ledger:
        return dict(kept_gold(ledger, ledger.tasks()[0]))


def _configured(folder: Path, *gold: Path, **task: Any) -> str:
    """The end of a run whose configuration names these gold files: what it says."""
    files = {"gold": [str(path) for path in gold]} if gold else {}
    raw = {
        "model": {"id": "scripted"},
        "source": {"path": str(folder / "in.jsonl")},
        "run": {"directory": str(folder / "run")},
        "tasks": [{"name": "topic", "kind": "label", "labels": list(LABELS), **files, **task}],
    }
    with _open(folder) as ledger:
        ledger.begin_run({"config": raw})
        return settle_answers(ledger, parse_config(raw)).get("topic", "")


def test_a_second_file_adds_to_the_first_and_none_is_needed_again(tmp_path: Path) -> None:
    truth = finished(tmp_path, 40)
    first = _calibrate(tmp_path, _part(tmp_path / "a.jsonl", truth, 0, 5))
    second = _calibrate(tmp_path, _part(tmp_path / "b.jsonl", truth, 3, 8))
    third = _calibrate(tmp_path)
    assert [made.view.calibration.gold for made in (first, second, third)] == [5, 8, 8]
    assert [_counts(made) for made in (first, second, third)] == [(0, 5, 0), (5, 3, 0), (8, 0, 0)]
    assert third.view.number == second.view.number == 2
    assert second.gold is not None
    assert second.gold.sentence == "8 gold labels: 5 kept in the run from before, 3 new"
    with _open(tmp_path) as ledger:
        rows = list_gold(ledger, None)["topic"]
    assert {row["id"]: row["label"] for row in rows} == dict(itertools.islice(truth.items(), 8))
    assert {row["file"] for row in rows} == {str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")}


def test_labels_that_differ_are_listed_and_refused_unless_the_new_ones_are_to_count(tmp_path: Path) -> None:
    truth = _few(finished(tmp_path, 40))
    _calibrate(tmp_path, gold_file(tmp_path / "a.jsonl", truth))
    other = {name: "world" if truth[name] != "world" else "sports" for name in ("d1", "d2")}
    corrected = gold_file(tmp_path / "b.jsonl", other)
    said = rf"keeps for task 'topic': 'd1' \(kept {truth['d1']}, given {other['d1']}\), 'd2'.*--replace"
    with pytest.raises(UsageError, match=said):
        _calibrate(tmp_path, corrected)
    assert _kept(tmp_path) == truth
    made = _calibrate(tmp_path, corrected, replaces=True)
    assert _counts(made) == (6, 0, 2)
    assert _kept(tmp_path) == {**truth, **other}


def test_what_is_refused_is_not_kept(tmp_path: Path) -> None:
    finished(tmp_path, 40)
    with pytest.raises(UsageError, match="no gold label can be used"):
        _calibrate(tmp_path, gold_file(tmp_path / "a.jsonl", {"stranger": "world"}))
    assert _kept(tmp_path) == {}


def test_kept_labels_leave_methods_that_use_none_alone(tmp_path: Path) -> None:
    truth = _few(finished(tmp_path, 40))
    with pytest.raises(UsageError, match="method gold needs gold labels"):
        _calibrate(tmp_path, method="gold")
    _calibrate(tmp_path, gold_file(tmp_path / "a.jsonl", truth))
    assert _calibrate(tmp_path, method="batch").gold is None
    assert _counts(_calibrate(tmp_path)) == (8, 0, 0)


def test_labels_are_taken_out(tmp_path: Path) -> None:
    _calibrate(tmp_path, gold_file(tmp_path / "a.jsonl", _few(finished(tmp_path, 40))))
    with _open(tmp_path) as ledger:
        with pytest.raises(UsageError, match="no label of document 'nobody' is kept"):
            remove_gold(ledger, None, ["d1", "nobody"])
        assert remove_gold(ledger, None, ["d1", "d2", "d1"]) == {"topic": 2}
    assert _calibrate(tmp_path).view.calibration.gold == 6


def test_a_review_proposes_nothing_that_has_a_label(tmp_path: Path) -> None:
    truth = finished(tmp_path, 40)
    _calibrate(tmp_path, _part(tmp_path / "a.jsonl", truth, 0, 6))
    _configured(tmp_path, _part(tmp_path / "b.jsonl", truth, 4, 9))
    with _open(tmp_path) as ledger:
        remove_gold(ledger, None, ["d3"])
        facts = review_run(ledger, tmp_path / "r.csv", 40)
    assert facts["left_out"] == {"labelled already": 8}
    assert "\nd3," in (tmp_path / "r.csv").read_text(encoding="utf-8")


def test_labels_of_reviews_are_no_sample_however_many_calibrations_they_came_in(tmp_path: Path) -> None:
    truth = finished(tmp_path, 40)
    for number, names in enumerate((["d1", "d2", "d3"], ["d4", "d5", "d6"])):
        review = tmp_path / f"r{number}.csv"
        rows = "".join(f"{name},{truth[name]},world\n" for name in names)
        review.write_text(f"id,label,proposed_label\n{rows}")
        assert "no random sample" in _calibrate(tmp_path, review).view.sentence
    assert "no random sample" in _calibrate(tmp_path).view.sentence
    gold = gold_file(tmp_path / "a.jsonl", {"d1": truth["d1"], "stranger": "world"})
    assert "no random sample" in _calibrate(tmp_path, gold).view.sentence  # of what is used
    sampled = gold_file(tmp_path / "b.jsonl", {"d9": truth["d9"]})
    assert "no random sample" not in _calibrate(tmp_path, sampled).view.sentence


def test_a_label_of_an_edited_text_is_used_and_said(tmp_path: Path) -> None:
    truth = finished(tmp_path, 40)
    gold = gold_file(tmp_path / "a.jsonl", _few(truth))
    _calibrate(tmp_path, gold)
    with _open(tmp_path) as ledger:
        old = [row.scores for row in ledger.scored("topic")]
        run = ledger.begin_run({})
        rows = [document(name) for name in truth]  # texts of their own
        read(ledger, run, rows)
        again = zip(rows, old, strict=True)
        ledger.finish(run, [done("topic", row.key, scores=scores) for row, scores in again])
    made = _calibrate(tmp_path)
    assert "8 gold labels were given to a text that has changed since" in made.view.sentence
    assert made.view.calibration.gold == 8
    assert "has changed since" not in _calibrate(tmp_path, gold).view.sentence  # given for the text of now


def test_a_version_with_other_labels_leaves_out_what_it_does_not_have(tmp_path: Path) -> None:
    truth = _few(finished(tmp_path, 40))
    _calibrate(tmp_path, gold_file(tmp_path / "a.jsonl", truth))
    fewer = [[name, None] for name in LABELS if name != _LACKED]
    job = TaskJob("topic", "label", {"task": {"kind": "label", "labels": fewer}})
    with _open(tmp_path) as ledger:
        ledger.accept_tasks([job], fork=True)
        task = next(task for task in ledger.tasks() if task.job.name == "topic")
        gold = kept_gold(ledger, task)
    assert gold == {name: label for name, label in truth.items() if label != _LACKED}
    assert "kept labels that the task does not have are left out: " in gold.notes[0]
    assert f"({_LACKED})" in gold.notes[0]


def test_several_labels_make_the_round_trip(tmp_path: Path) -> None:
    truth = dict(itertools.islice(finished_several(tmp_path, 40).items(), 8))
    path = tmp_path / "gold.jsonl"
    path.write_text("".join(json.dumps({"id": name, "label": given}) + "\n" for name, given in truth.items()))
    with _open(tmp_path) as ledger:
        calibrate_run(ledger, gold=[path])
        assert kept_gold(ledger, ledger.tasks()[0]) == {name: tuple(given) for name, given in truth.items()}
        assert calibrate_run(ledger)["tags"].view.gold_labels.keys() == _keys(ledger, truth)


# ── the configuration's files ───────────────────────────────────────────────────────────────────────────────


def test_a_run_uses_what_was_given_beside_the_files_of_its_configuration(tmp_path: Path) -> None:
    truth = finished(tmp_path, 40)
    gold = _part(tmp_path / "gold.jsonl", truth, 0, 5)
    _configured(tmp_path, gold)
    made = _calibrate(tmp_path, _part(tmp_path / "more.jsonl", truth, 5, 8))
    assert _counts(made) == (5, 3, 0)
    gold_file(gold, {**dict(itertools.islice(truth.items(), 1, 5)), "d1": _other(truth["d1"])})
    assert _configured(tmp_path, gold) == ""
    kept = _kept(tmp_path)
    assert "d0" not in kept  # the file has it no more
    assert kept["d1"] == _other(truth["d1"])  # and has corrected this one
    assert len(kept) == 7


def test_where_they_differ_what_was_given_by_command_counts_and_it_is_said(tmp_path: Path) -> None:
    finished(tmp_path, 40)
    _calibrate(tmp_path, gold_file(tmp_path / "mine.jsonl", {"d1": "world", "d2": "world"}))
    gold = gold_file(tmp_path / "gold.jsonl", {"d1": "sports"})
    _configured(tmp_path, gold)
    assert _kept(tmp_path)["d1"] == "world"
    with _open(tmp_path) as ledger:
        assert "which count: 'd1' (sports; kept world)" in ledger.views("topic")[-1].facts["sentence"]


def test_a_label_of_a_configured_file_is_taken_out_there(tmp_path: Path) -> None:
    gold = gold_file(tmp_path / "gold.jsonl", _few(finished(tmp_path, 40)))
    _configured(tmp_path, gold)
    with _open(tmp_path) as ledger, pytest.raises(UsageError, match="take it out there, the next run would"):
        remove_gold(ledger, None, ["d1"])


def test_a_calibration_reads_the_configured_files_again_and_says_where_it_cannot(tmp_path: Path) -> None:
    truth = finished(tmp_path, 40)
    gold = _part(tmp_path / "gold.jsonl", truth, 0, 5)
    _configured(tmp_path, gold)
    gold_file(gold, _few(truth))
    assert _counts(_calibrate(tmp_path)) == (8, 0, 0)
    gold.unlink()
    made = _calibrate(tmp_path)
    assert _counts(made) == (8, 0, 0)
    assert "gold files cannot be read now, what was kept of them counts: there is no gold file" in (
        made.view.sentence
    )


def _few(truth: dict[str, str]) -> dict[str, str]:
    """So few that nothing is fitted to them, which takes a second."""
    return dict(itertools.islice(truth.items(), 8))


def _keys(ledger: Ledger, ids: Iterable[str]) -> set[str]:
    return {key for keys in ledger.keys_of_ids(list(ids)).values() for key in keys}


def _other(label: str) -> str:
    return "world" if label != "world" else "sports"
