"""Which view is shown: a person chooses, runs respect it, numbers are never used twice, and a calibration
that answers nobody takes no earlier view's place.
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.config import parse_config
from pipeline.errors import UsageError
from pipeline.results.after_run import settle_answers
from pipeline.results.evaluate import evaluate
from pipeline.results.label_view import view_in_force
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import LEDGER, RunDirectory
from tests.quality.tables import LABELS
from tests.results.answered import finished, gold_file


def _command(*arguments: str, error: str = "") -> dict[str, Any]:
    """What the command prints as JSON, or that it fails with this in its sentence."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    if error:
        assert isinstance(done.exception, UsageError), done.output
        assert error in str(done.exception)
        return {}
    assert done.exit_code == 0, (done.output, done.exception)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def _lines(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def _exported(folder: Path, *more: str) -> list[dict[str, Any]]:
    _command("export", str(folder / "run"), "-o", str(folder / "x.jsonl"), *more)
    return [json.loads(line) for line in (folder / "x.jsonl").read_text(encoding="utf-8").splitlines()]


def _seen(folder: Path) -> set[str | None]:
    """Through which view the export shows labels."""
    return {row.get("topic_calibration") for row in _exported(folder)}


def _run_ends(folder: Path, **task: Any) -> str:
    raw = {
        "model": {"id": "scripted"},
        "source": {"path": str(folder / "in.jsonl")},
        "run": {"directory": str(folder / "run")},
        "tasks": [{"name": "topic", "kind": "label", "labels": list(LABELS), **task}],
    }
    with Ledger.open(folder / "run" / LEDGER, write=True) as ledger:
        return settle_answers(ledger, parse_config(raw)).get("topic", "")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    truth = finished(folder, 40)
    gold_file(folder / "gold.jsonl", dict(itertools.islice(truth.items(), 20)))
    _command("calibrate", str(folder / "run"), "--method", "batch")
    _command("calibrate", str(folder / "run"), "--gold", str(folder / "gold.jsonl"))
    return folder


@pytest.fixture
def folder(calibrated: Path, tmp_path: Path) -> Path:
    """A finished run with view 1 (over the batch) and view 2 (by gold labels), which is shown."""
    return Path(shutil.copytree(calibrated, tmp_path / "copy"))


def test_views_are_listed_and_shown_in_full(folder: Path) -> None:
    run = str(folder / "run")
    listed = _command("views", run)["tasks"]["topic"]
    assert (listed["shown"], listed["held"]) == (2, True)
    assert [(view["view"], view["method"], view["gold"]) for view in listed["views"]] == [
        (2, "gold", 20),
        (1, "batch", 0),
    ]
    told = _lines("views", run)
    assert "  *   2  gold" in told
    assert "      1  batch" in told
    assert "      0  none           what the model said itself" in told
    one = _command("views", run, "--show", "2")
    assert (one["task"], one["shown"], one["cross_validation"]["folds"]) == ("topic", True, 5)
    assert one["sentence"] in _lines("views", run, "--show", "2")
    _command("views", run, "--show", "3", error="no view 3; it has 1, 2 (0 is what the model said itself)")


def test_the_chosen_view_is_the_one_that_everything_shows_also_after_a_run(folder: Path) -> None:
    run = str(folder / "run")
    _command("views", run, "--choose", "1")
    assert _seen(folder) == {"view 1: batch"}
    report = json.loads((folder / "run" / "report.json").read_text(encoding="utf-8"))
    assert report["tasks"]["topic"]["view"]["number"] == 1
    with Ledger.open(folder / "run" / LEDGER, write=False) as ledger:
        assert evaluate(ledger, gold=folder / "gold.jsonl")["tasks"]["topic"]["view"] == 1
    assert "view 1, chosen with overnight views, stays in force" in _run_ends(folder)
    assert _seen(folder) == {"view 1: batch"}
    _command("views", run, "--as-configured")
    assert _run_ends(folder, calibration="none", abstain_below=0.3) == ""
    assert _seen(folder) == {"view 3: none"}
    _command("calibrate", run, "--method", "batch")  # a person's later word
    assert _seen(folder) == {"view 4: batch"}
    _command("views", run, "--choose", "7", error="no view 7")


def test_what_the_model_said_itself_can_be_chosen(folder: Path) -> None:
    raw = [row["topic"] for row in _exported(folder, "--view", "0")]
    _command("views", str(folder / "run"), "--choose", "0")
    rows = _exported(folder)
    assert [row["topic"] for row in rows] == raw
    assert {row["topic_calibration"] for row in rows} == {"view 0: none"}
    report = json.loads((folder / "run" / "report.json").read_text(encoding="utf-8"))["tasks"]["topic"]
    assert report["labels"]["distribution"] == {name: raw.count(name) for name in set(raw)}
    assert "view 0, what the model said itself, chosen" in _run_ends(folder)
    assert "  *   0  none" in _lines("views", str(folder / "run"))


def test_a_deleted_view_leaves_its_number_and_the_one_shown_another_in_its_place(folder: Path) -> None:
    run = str(folder / "run")
    told = _command("views", run, "--delete", "2")
    assert told["notes"] == ["the view shown is deleted: view 1 is shown now"]
    assert _seen(folder) == {"view 1: batch"}
    _command("export", run, "-o", str(folder / "y.jsonl"), "--view", "2", error="no view 2; it has 1")
    _command("calibrate", run, "--method", "batch", "--abstain-below", "0.2")
    assert _seen(folder) == {"view 3: batch"}
    assert _command("views", run, "--delete", "1")["notes"] == []
    assert _command("views", run, "--delete", "3")["notes"] == [
        "the view shown is deleted: what the model said itself is shown now"
    ]
    assert _seen(folder) == {"view 0: none"}
    assert _run_ends(folder, calibration="none", abstain_below=0.3) == ""
    assert _seen(folder) == {"view 4: none"}
    _command("views", run, "--delete", "0", error="it cannot be deleted")
    _command("views", run, "--delete", "4", "--delete", "9", error="no view 9")
    assert [view["view"] for view in _command("views", run)["tasks"]["topic"]["views"]] == [4]


def test_a_calibration_that_answers_nobody_is_kept_and_not_shown(folder: Path) -> None:
    run, threshold = str(folder / "run"), ("--method", "batch", "--abstain-below", "1")
    facts = _command("calibrate", run, *threshold)["tasks"]["topic"]
    assert (facts["view"], facts["shown"]) == (3, False)
    assert _seen(folder) == {"view 2: gold"}
    said = _lines("calibrate", run, *threshold)
    assert (
        f"it answers no document, so view 2 stays shown; overnight views {run} --task topic --choose 3"
        in said
    )
    assert "answers no document" in _lines("views", run)
    assert _command("views", run, "--delete", "2")["notes"][0].endswith("view 1 is shown now")
    assert _command("calibrate", run, *threshold, "--show-anyway")["tasks"]["topic"]["shown"]
    assert {row["topic"] for row in _exported(folder)} == {None}


def test_the_first_calibration_of_all_may_answer_nobody(tmp_path: Path) -> None:
    finished(tmp_path, 40)
    run = str(tmp_path / "run")
    said = _lines("calibrate", run, "--abstain-below", "1")
    assert "so what the model said itself stays shown" in said
    assert _seen(tmp_path) == {None}
    with Ledger.open(tmp_path / "run" / LEDGER, write=False) as ledger:
        assert view_in_force(ledger, ledger.tasks()[0]) is None


def test_gold_labels_are_listed_and_taken_out(folder: Path) -> None:
    run = str(folder / "run")
    rows = _command("gold", run)["tasks"]["topic"]
    assert len(rows) == 20
    origin = rows[0]["file"]
    assert origin.endswith("gold.jsonl")
    told = _lines("gold", run)
    assert told.startswith("topic: 20 gold labels (")
    assert "0 chosen by a review" in told
    assert f"  d0  {rows[0]['label']}  ({origin}, " in told
    assert _command("gold", run, "--remove", "d0", "--remove", "d1") == {"removed": {"topic": 2}}
    assert len(_command("gold", run)["tasks"]["topic"]) == 18
    _command("gold", run, "--remove", "d0", error="no label of document 'd0' is kept")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("views", "--choose", "1", "--delete", "2"), "--delete says nothing beside --choose"),
        (("views", "--show", "1", "--choose", "2"), "--choose says nothing beside --show"),
        (("views", "--task", "summary", "--choose", "1"), "the run has no label task 'summary'"),
        (("gold", "--task", "summary"), "only label tasks"),
        (("calibrate", "--replace"), "--replace says nothing without --gold"),
    ],
)
def test_what_says_nothing_is_refused(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    command, *more = arguments
    _command(command, str(folder / "run"), *more, error=said)


def test_a_run_that_is_going_on_is_left_alone(folder: Path) -> None:
    run = str(folder / "run")
    with RunDirectory(folder / "run").locked():
        for words in (("views", run, "--choose", "1"), ("gold", run, "--remove", "d0")):
            done = CliRunner().invoke(app, list(words))
            assert "is in use by another run" in str(done.exception)
        assert _command("views", run)["tasks"]["topic"]["shown"] == 2
