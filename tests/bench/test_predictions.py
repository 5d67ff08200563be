"""What the plan foretells of the demo model, beside what real runs take: the peak of memory, and the time
after a calibration.

``python -m pytest -m bench tests/bench/test_predictions.py -s`` prints every pair. Times mean little on a
machine that does something else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]
REPORTS = [
    json.loads(line) for line in (ROOT / "data" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
]
SUMMARY = {"name": "summary", "kind": "summarize", "max_output_tokens": 48}
TOPIC = {"name": "topic", "kind": "label", "labels": ["world", "sports", "business", "science"]}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))


def configured(
    folder: Path, place: Path, rows: list[dict[str, Any]], task: dict[str, Any], **sections: Any
) -> Path:
    source, config = folder / "in.jsonl", folder / "config.yaml"
    source.write_text(
        "".join(
            json.dumps({"id": f"d{number}", "text": row["text"]}) + "\n" for number, row in enumerate(rows)
        )
    )
    raw = {
        "source": {"path": str(source)},
        "tasks": [task],
        "run": {"directory": str(folder / "run")},
        **sections,
    }
    raw["model"] = {"id": str(place), "dtype": "float32", **sections.get("model", {})}
    config.write_text(yaml.safe_dump(raw))
    return config


def command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli.main", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def outcome(folder: Path) -> dict[str, dict[str, Any]]:
    lines = json.loads((folder / "run" / "report.json").read_text())["outcome"]["lines"]
    for line in lines:
        print(
            f"\n{line['name']}: predicted {line['predicted']}, measured {line['measured']}, ratio "
            f"{line['ratio']}",
            end="",
        )
    return {line["name"]: line for line in lines}


@pytest.mark.parametrize("context_tokens", [512, 1024])
@pytest.mark.parametrize("quantization", ["none", "nf4"])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_the_peak_of_memory(
    tmp_path: Path, demo_model_folder: Path, rows: int, quantization: str, context_tokens: int
) -> None:
    """Predicted within a tenth, and never less than measured by more than three hundredths."""
    short = [row for row in REPORTS if len(row["text"]) < 2500][: max(4, rows)]
    model = {"quantization": quantization, "context_tokens": context_tokens}
    config = configured(
        tmp_path,
        demo_model_folder,
        short,
        {**SUMMARY, "max_output_tokens": 12},
        model=model,
        engine={"batch_rows": rows},
    )
    command("run", str(config))
    ratio = outcome(tmp_path)["RAM peak of the worker"]["ratio"]
    assert 0.9 <= ratio <= 1.03


@pytest.mark.parametrize("task", [SUMMARY, TOPIC], ids=lambda task: task["kind"])
def test_the_time_after_a_calibration(tmp_path: Path, demo_model_folder: Path, task: dict[str, Any]) -> None:
    """Work within a quarter of what was foretold."""
    short = [row for row in REPORTS if len(row["text"]) < 2500]
    model = {"quantization": "none", "context_tokens": 1024}
    config = configured(tmp_path, demo_model_folder, short, task, model=model)
    command("plan", str(config), "--measure")
    command("run", str(config))
    assert 0.75 <= outcome(tmp_path)["work"]["ratio"] <= 1.25
