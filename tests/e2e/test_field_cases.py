"""Cases from the field that only the whole command shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.nights import TASKS, ANight, documents


@pytest.fixture
def night(tmp_path: Path) -> ANight:
    """Over a folder as the Hub's data sets are: two splits, a card, and what a library wrote about them."""
    night = ANight(tmp_path, [], [TASKS[0]], extra={"source": {"path": str(tmp_path / "ds")}})
    rows = {"data/train.jsonl": "train0", "data/test.jsonl": "test0"}
    for name, identity in rows.items():
        place = tmp_path / "ds" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"id": identity, "text": f"{identity} text"}) + "\n")
    (tmp_path / "ds" / "README.md").write_text("# Dataset card\n")
    (tmp_path / "ds" / "dataset_infos.json").write_text('{"default": {}}')
    return night


def exported(night: ANight, *arguments: str) -> tuple[list[str], str]:
    """The ids in the table of a run that answers all, and what it said beside that."""
    out = night.folder / "out.jsonl"
    done = night.run("--output", str(out), *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["id"] for line in out.read_text().splitlines()], done.stderr


def test_10_a_split_is_obeyed_and_what_is_about_the_records_is_left_out(night: ANight) -> None:
    assert exported(night, "-q", "--set", "source.split=test") == (["test0"], "")
    ids, said = exported(night)
    assert ids == ["test0", "train0"]
    assert "not what lies beside them (README.md, dataset_infos.json)" in said
    assert not night.status()["rejected"]


def test_17_a_time_and_a_pattern_are_set_as_they_are_typed(night: ANight) -> None:
    pattern = f"{night.folder}/ds/data/*.jsonl"
    found = exported(night, "-q", "--set", "run.deadline=22:30", "--set", f"source.path={pattern}")
    assert found == (["test0", "train0"], "")


def test_07_homes_variables_and_words_are_taken_as_they_are_typed(tmp_path: Path) -> None:
    night = ANight(tmp_path / "night", documents(4, longest=2), [TASKS[0]])
    home = Path.home() / f"set-{tmp_path.name}"
    given = {
        "source.path": "night/*.jsonl",
        "run.directory": f"~/{home.name}/run",
        "run.output": f"${{HOME}}/{home.name}/table=1.jsonl",
        "tasks.topic.instructions": "Which one: yes, no, 1e3 or # none?",
        "tasks.topic.cue": "*on",
    }
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    done = night.run("-q", *words, "--limit", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = (home / "table=1.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(row)["id"] for row in rows] == ["d0000", "d0001", "d0002"]
    shown = night.command("show", str(home / "run"), "d0000", cwd=tmp_path)
    assert "Which one: yes, no, 1e3 or # none?" in shown.stdout
    assert not list(tmp_path.rglob("~"))
    assert not list(tmp_path.rglob("$*"))
