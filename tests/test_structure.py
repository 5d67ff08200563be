"""The program keeps its rooms: few layers, nothing flat, no cycles, kinds of tasks in their own files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.structure import (
    MAY_LIE_FLAT,
    ROOT,
    arrows,
    arrows_by_name,
    cycles,
    kinds_named,
    layers,
    measure,
    read_modules,
)

MOST_LAYERS = 12


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return measure()


def test_the_contract_has_few_layers_and_names_every_room(found: dict[str, Any]) -> None:
    assert len(found["contract_layers"]) <= MOST_LAYERS
    named = {
        name.strip().removeprefix("pipeline.")
        for layer in found["contract_layers"]
        for name in layer.replace("|", ":").split(":")
    }
    assert named == set(found["rooms"])


def test_rooms_stand_in_few_layers_and_no_circle(found: dict[str, Any]) -> None:
    assert found["cycles"] == []
    assert len(found["layers"]) <= MOST_LAYERS


def test_nothing_lies_flat(found: dict[str, Any]) -> None:
    assert set(found["flat_modules"]) <= MAY_LIE_FLAT


def _checkout(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_circle_is_found_and_layers_count_down(tmp_path: Path) -> None:
    modules = read_modules(
        _checkout(
            tmp_path,
            {
                "pipeline/__init__.py": "",
                "pipeline/cli/main.py": "from pipeline.run.runner import run",
                "pipeline/run/runner.py": "def run():\n    from pipeline.engine import engine\n",
                "pipeline/engine/engine.py": "import pipeline.run.protocol\nfrom pipeline import records",
                "pipeline/records.py": "",
                "flows/night.py": "from pipeline.cli import main",
            },
        )
    )
    graph = arrows(modules)
    assert graph["engine"] == {"run", "records"}
    assert cycles(graph) == [["engine", "run"]]
    assert layers(graph) == [["flows"], ["cli"], ["engine", "run"], ["records"]]


@pytest.mark.parametrize(
    ("line", "check"),
    [
        ("found = task.job.kind == 'label'", True),
        ("found = 'summarize' != found['kind']", True),
        ("found = task.kind in ('label', 'other')", True),
        ("found = isinstance(task, (int, config.LabelTask))", True),
        ("found = {'label': 1, 'summarize': 2}", True),
        ("from pipeline.config import SummarizeTask", False),
        ("job = Job(kind='label')", False),
        ("name = 'summarize'", False),
    ],
)
def test_a_kind_named_elsewhere_is_found(tmp_path: Path, line: str, check: bool) -> None:
    own = ("pipeline/tasks/label.py", "pipeline/tasks/summarize/task.py", "pipeline/results/kinds/label.py")
    files = dict.fromkeys(("pipeline/results/export.py", *own), f"{line}\n")
    root = _checkout(tmp_path, files)
    named = kinds_named(read_modules(root), root)
    assert [(place.path, place.line, place.check) for place in named] == [
        ("pipeline/results/export.py", 1, check)
    ]


def test_what_is_found_by_name_is_told(tmp_path: Path) -> None:
    text = "found = resolve('pipeline.tasks.registry:kinds')\nown = resolve('pipeline.config:Config')\n"
    root = _checkout(tmp_path, {"pipeline/config.py": text, "pipeline/tasks/registry.py": ""})
    assert arrows_by_name(read_modules(root)) == ["config -> pipeline.tasks.registry:kinds"]


def test_a_column_called_label_is_no_kind(tmp_path: Path) -> None:
    root = _checkout(tmp_path, {"pipeline/results/gold.py": "label_field = 'label'\nrow = table['label']\n"})
    assert kinds_named(read_modules(root), root) == []


def test_the_script_prints_the_same_facts(found: dict[str, Any]) -> None:
    command = [sys.executable, str(ROOT / "tests" / "structure.py"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(json.dumps(found))
