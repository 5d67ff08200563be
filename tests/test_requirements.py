"""Requirements that had no test of their own elsewhere, and the table in README.md that names the test of
each.
"""

from __future__ import annotations

import ast
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.nights import TASKS, ANight, documents

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "README.md"
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_that_the_table_names_is_there() -> None:
    named = _NAMED.findall(TABLE.read_text(encoding="utf-8"))
    assert len(named) > 80
    known: dict[str, set[str]] = {}
    for path, name in named:
        if path not in known:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            known[path] = {
                node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
            }
        assert name in known[path], f"{path} has no {name}"


def test_every_line_of_the_requirements_has_a_row() -> None:
    rows = set(re.findall(r"^\| ([A-I]\d+) \|", TABLE.read_text(encoding="utf-8"), re.MULTILINE))
    lines = {"A": 9, "B": 5, "C": 7, "D": 6, "E": 9, "F": 9, "G": 10, "H": 6, "I": 5}
    assert rows == {f"{letter}{number}" for letter, count in lines.items() for number in range(1, count + 1)}


def test_empty_texts_are_skipped_without_a_question(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        *documents(3),
        {"id": "empty", "text": ""},
        {"id": "blank", "text": " \n\t\u3000"},
        {"id": "nul", "text": "\0\0"},
        {"id": "zero width", "text": "\u200b\u200b"},
        {"id": "mark", "text": "\ufeff"},
    ]
    night = ANight(tmp_path, rows, TASKS[:1])
    assert night.run().returncode == 0
    states = night.status()["tasks"]["topic"]
    assert (states["done"], states["skipped"]) == (3, 5)
    with closing(sqlite3.connect(night.directory / "ledger.sqlite")) as ledger:
        assert ledger.execute("SELECT count(*) FROM attempts").fetchone() == (3,)


@pytest.mark.parametrize(("overrides", "code"), [((), 0), (("--set", "source.max_rejects=0"), 2)])
def test_the_offload_folder_is_gone_however_a_run_ends(
    tmp_path: Path, overrides: tuple[str, ...], code: int
) -> None:
    night = ANight(tmp_path, documents(3), TASKS[:1])
    if code:
        night.source.write_text('{"id": 1}\n')
    (night.directory / "offload").mkdir(parents=True)
    (night.directory / "offload" / "weights").write_bytes(b"of a run that was killed")
    assert night.run(*overrides).returncode == code
    assert not (night.directory / "offload").exists()


def test_a_run_needs_no_prefect(tmp_path: Path) -> None:
    """A module of that name which cannot be imported stands in its place."""
    (tmp_path / "prefect.py").write_text("raise ImportError('there is no Prefect here')")
    night = ANight(tmp_path / "night", documents(3), TASKS[:1])
    command = ["run", str(night.config)]
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from pipeline.cli.main import main; "
        f"sys.argv[1:] = {command!r}; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=night.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
