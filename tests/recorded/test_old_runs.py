"""A run directory of version 0.1.0 through every command that reads it, and through the run that goes on."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.results.source_texts import last_config
from pipeline.stores.ledger.ledger import Ledger
from tests.programs import overnight
from tests.recorded.old_runs import RECORDED, TASKS, configure, restore, results, states

_ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return restore(tmp_path).relative_to(tmp_path)


def command(*arguments: str, code: int = 0) -> str:
    """What the command prints."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


def exported(folder: Path, run: Path) -> dict[str, dict[str, Any]]:
    command("export", str(run), "--output", str(folder / "out.jsonl"))
    lines = (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


def gold(folder: Path) -> str:
    labels = ["sports", "world", "sports", "business", "sports", "world", "sports", "sports"]
    rows = [json.dumps({"id": f"d{number}", "label": label}) for number, label in enumerate(labels)]
    (folder / "gold.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return str(folder / "gold.jsonl")


def test_what_is_recorded_holds_no_path_of_a_machine() -> None:
    for path in RECORDED.rglob("*"):
        if path.suffix in {".sql", ".json", ".jsonl"}:
            assert not {"/home/", "/tmp/", "/root/", "/work", "/opt/"} & set(path.read_text().split('"'))
    assert sum(path.stat().st_size for path in RECORDED.rglob("*") if path.is_file()) < 200_000


def test_its_configuration_is_upgraded(run: Path) -> None:
    with Ledger.open(run / "ledger.sqlite", write=False) as ledger:
        facts = [row["facts"]["config"] for row in ledger.runs()]
        assert last_config(ledger).engine.batch_rows == 1
    with closing(sqlite3.connect(run / "ledger.sqlite")) as raw:
        recorded = [
            json.loads(facts)["config"] for (facts,) in raw.execute("SELECT facts FROM runs ORDER BY id")
        ]
    assert [config["engine"].pop("decoder") for config in recorded] == ["auto", "transformers"]
    assert facts == recorded


def test_status(run: Path) -> None:
    counts = json.loads(command("status", str(run), "--json"))
    assert (counts["documents"], counts["rejected"], counts["duplicates"]) == (8, 1, 1)
    assert counts["tasks"]["summary"] == {
        "pending": 4,  # three of them were being asked when it was killed
        "running": 0,
        "done": 3,
        "failed": 1,
        "quarantined": 0,
        "skipped": 0,
    }


def test_export(run: Path, tmp_path: Path) -> None:
    rows = exported(tmp_path, run)
    assert rows["d0"]["topic"] == "sports"
    assert rows["d1"]["topic_status"] == "done"
    assert "'title' is undefined" in rows["d3"]["summary_error"]
    assert rows["d7"]["topic"] is None


def test_show(run: Path) -> None:
    facts = json.loads(command("show", str(run), "d0", "--json"))
    assert facts["documents"][0]["tasks"]["topic"]["result"]["value"] == "sports"


def test_report(run: Path) -> None:
    assert "- 2 pending, 6 done" in command("report", str(run))  # nobody computes


def test_review(run: Path, tmp_path: Path) -> None:
    table = tmp_path / "review.csv"
    command("review", str(run), "--output", str(table))
    assert "harbour" in table.read_text(encoding="utf-8")


def test_evaluate(run: Path, tmp_path: Path) -> None:
    facts = json.loads(command("evaluate", str(run), "--gold", gold(tmp_path), "--json"))
    assert "topic" in json.dumps(facts)


def test_calibrate(run: Path, tmp_path: Path) -> None:
    command("calibrate", str(run), "--gold", gold(tmp_path), "--target-accuracy", "0.5")
    assert exported(tmp_path, run)["d0"]["topic_status"] == "done"


def _run(folder: Path, *arguments: str) -> None:
    # the document without a title has failed for good
    overnight("run", "config.yaml", *arguments, code=3, cwd=folder)


def _store_facts(run: Path) -> dict[str, Any]:
    with Ledger.open(run / "ledger.sqlite", write=False) as ledger:
        facts: dict[str, Any] = ledger.runs()[-1]["facts"]["store"]
        return facts


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[int, str], Any]]:
    """The folder after a run of this version, and the results that were there before it."""
    folder = tmp_path_factory.mktemp("resumed")
    before = results(restore(folder))
    _run(folder)
    return folder, before


def test_a_run_goes_on(resumed: tuple[Path, dict[tuple[int, str], Any]]) -> None:
    """What a library's decoder had answered stays; only the rest is asked."""
    folder, before = resumed
    after = results(folder / "run")
    assert {key: row for key, row in after.items() if key in before} == before
    assert states(folder / "run") == {
        ("topic", "done"): 8,
        ("summary", "done"): 7,
        ("summary", "failed"): 1,
        ("short", "done"): 8,
    }


def test_an_added_task_finds_the_documents_in_the_old_store(
    resumed: tuple[Path, dict[tuple[int, str], Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(resumed[0], folder)
    configure(folder, [*TASKS, {"name": "mood", "kind": "label", "labels": ["good", "bad"]}])
    _run(folder)
    assert states(folder / "run")["mood", "done"] == 8
    print(_store_facts(folder / "run"))
    assert _store_facts(folder / "run")["hits"] >= 1


def test_a_run_goes_on_elsewhere_with_its_model_under_another_name(tmp_path: Path) -> None:
    """The weights are the same, whatever their folder is called and wherever everything lies."""
    restore(tmp_path / "first")
    moved = tmp_path / "second" / "place"
    shutil.move(tmp_path / "first", moved)
    (moved / "model").rename(moved / "renamed")
    before = results(moved / "run")
    given = ("--set", "model.id=place/renamed", "--set", "run.directory=place/run")
    overnight(
        "run", "place/config.yaml", *given, "--set", "source.path=place/in.jsonl", code=3, cwd=moved.parent
    )
    after = results(moved / "run")
    assert {key: row for key, row in after.items() if key in before} == before
    assert states(moved / "run")["topic", "done"] == 8
