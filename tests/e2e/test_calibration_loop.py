"""The loop of a person who wants labels to be right: sample, label by hand, calibrate, review, label,
calibrate, by the README's commands over one configuration. Each step's accuracy is judged over all documents,
those that were labelled by cross-validation.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import LEDGER
from tests.nights import TASKS, ANight, documents

ROOT = Path(__file__).parents[2]
BIAS = {"world": 4.0, "sports": 0.0, "business": -2.0}
"""What the scripted model says too little of a label, in natural logs."""

Truth = Mapping[str, str]


def command(*arguments: str) -> dict[str, Any]:
    """What the command prints."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def label_by_hand(path: Path, truth: Truth) -> set[str]:
    """Fill the column label in, as a person does in a spreadsheet. The ids."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows({**row, "label": truth[row["id"]]} for row in rows)
    return {row["id"] for row in rows}


def through_the_loop(
    night: ANight, truth_of: Callable[[], Truth], sampled: int, reviewed: int
) -> dict[str, float]:
    """Accuracy as the model said it, at the end of the run, and after each of the two calibrations."""
    run, config, folder = str(night.directory), str(night.config), night.folder
    sample, review, true = (folder / name for name in ("gold.csv", "review.csv", "truth.jsonl"))
    command("sample", config, "-o", str(sample), "--count", str(sampled))
    done = night.run(timeout=1500)
    assert done.returncode == 0, done.stderr
    truth = truth_of()
    true.write_text("".join(json.dumps({"id": name, "label": label}) + "\n" for name, label in truth.items()))

    def accuracy(*view: str) -> float:
        judged = command("evaluate", run, "--gold", str(true), *view)["tasks"]["topic"]
        assert judged["judged"] == len(truth)
        value: float = judged["headline"]["accuracy"]["value"]
        return value

    found = {"as the model said it": accuracy("--view", "0"), "end of the run": accuracy()}
    first = label_by_hand(sample, truth)
    made = command("calibrate", run, "--gold", str(sample))["tasks"]["topic"]
    assert made["gold"] == {"kept": 0, "new": sampled, "replaced": 0}
    found["sample labelled"] = accuracy()
    command("review", run, "-o", str(review), "--count", str(reviewed))
    second = label_by_hand(review, truth)
    assert not first & second
    made = command("calibrate", run, "--gold", str(review))["tasks"]["topic"]
    assert made["gold"] == {"kept": sampled, "new": reviewed, "replaced": 0}
    found["review labelled"] = accuracy()
    assert {row["id"] for row in command("gold", run)["tasks"]["topic"]} == first | second
    return found


def test_each_round_of_labels_makes_the_answers_better(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(40, longest=1), [TASKS[0]])

    def truth() -> Truth:
        with Ledger.open(night.directory / LEDGER, write=False) as ledger:
            return {
                row.id: max(row.scores, key=lambda name: row.scores[name] + BIAS[name])
                for row in ledger.scored("topic")
            }

    found = through_the_loop(night, truth, 12, 12)
    assert found["sample labelled"] > found["as the model said it"]
    assert found["review labelled"] > found["as the model said it"] + 0.15


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_loop_with_the_demo_model(tmp_path: Path) -> None:
    lines = (ROOT / "data" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
    reports = [row for row in map(json.loads, lines) if len(row["text"]) < 4000]
    labels = sorted({row["label"] for row in reports})
    night = ANight(
        tmp_path,
        [{"id": row["id"], "text": row["text"]} for row in reports],
        [{"name": "topic", "kind": "label", "labels": labels}],
        extra={"model": {"id": "smollm2-135m-instruct", "context_tokens": 2048}},
    )
    found = through_the_loop(night, lambda: {row["id"]: row["label"] for row in reports}, 14, 8)
    print(found)
    assert found["review labelled"] > found["as the model said it"]
