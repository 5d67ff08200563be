"""What is typed behind ``--set`` and what paths are made of, through the whole command: field cases 07 and 17
and others of their kind.
"""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.errors import UsageError
from tests.nights import ANight, documents


def test_times_patterns_homes_and_variables_are_taken_as_they_are_typed(tmp_path: Path) -> None:
    night = ANight(tmp_path / "night", documents(4, longest=2))
    home = Path.home() / f"set-{tmp_path.name}"
    given = {
        "run.deadline": "22:30",
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
    shown = night.command("show", str(home / "run"), "d0000")
    assert "Which one: yes, no, 1e3 or # none?" in shown.stdout
    assert not list(tmp_path.rglob("~"))
    assert not list(tmp_path.rglob("$*"))


def test_an_empty_text_is_refused_where_it_names_nothing(tmp_path: Path) -> None:
    night = ANight(tmp_path / "night", documents(1))
    for key in ("source.path", "run.directory"):
        done = CliRunner().invoke(app, ["run", str(night.config), "--set", f"{key}="])
        assert isinstance(done.exception, UsageError), done.output
        assert f"{key}: it names no file or folder" in str(done.exception)
