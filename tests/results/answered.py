"""A finished label task for tests of evaluation and review: real source, real ledger, scores whose truth is
known, no engine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.quality.scores import log_softmax
from pipeline.records import Outcome, TaskJob
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import LEDGER
from tests.quality.tables import LABELS, drawn
from tests.stores.ledger.ledgers import document, done, failed, read

WORDS = {
    "world": "treaty border",
    "sports": "match goal",
    "business": "market share",
    "science": "telescope atom",
}


def finished(
    folder: Path,
    count: int = 200,
    *,
    seed: int = 1,
    examples: tuple[str, ...] = (),
    fail: tuple[str, ...] = (),
    names: str = "d{}",
) -> dict[str, str]:
    """A run directory ``folder/run`` with the tasks topic and summary finished over ``folder/in.jsonl``;
    returns the true labels.
    """
    scores, truth = drawn(count, seed)
    logs = log_softmax(scores)
    texts = [f"{WORDS[LABELS[label]]} number {number} of the day" for number, label in enumerate(truth)]
    rows = [document(names.format(number), text, line=number + 1) for number, text in enumerate(texts)]
    source = folder / "in.jsonl"
    source.write_text(
        "".join(json.dumps({"id": row.id, "text": row.text}) + "\n" for row in rows), encoding="utf-8"
    )
    labels = [[name, None] for name in LABELS]
    shown: dict[str, Any] = {"examples": [[name, "a text", "world"] for name in examples]} if examples else {}
    topic = TaskJob("topic", "label", {"task": {"kind": "label", "labels": labels}, **shown})
    summary = TaskJob("summary", "summarize", {"task": {"kind": "summarize"}})
    (folder / "run").mkdir()
    with Ledger.open(folder / "run" / LEDGER, write=True) as ledger:
        ledger.accept_tasks([topic, summary], fork=False)
        config = {
            "model": {"id": "scripted"},
            "source": {"path": str(source)},
            "run": {"directory": str(folder / "run")},
            "tasks": [
                {"name": "topic", "kind": "label", "labels": list(LABELS)},
                {"name": "summary", "kind": "summarize"},
            ],
        }
        run = ledger.begin_run({"config": config})
        read(ledger, run, rows)
        outcomes: list[Outcome] = []
        for row, values in zip(rows, logs, strict=True):
            known = dict(zip(LABELS, values.tolist(), strict=True))
            odds = {name: float(np.exp(value)) for name, value in known.items()}
            best = max(odds, key=lambda name: odds[name])
            answered = done("topic", row.key, best, probabilities=odds, scores=known)
            outcomes.append(failed("topic", row.key) if row.id in fail else answered)
            outcomes.append(done("summary", row.key, " ".join(row.text.split()[:3]), probabilities=None))
        ledger.finish(run, outcomes)
    return {row.id: LABELS[label] for row, label in zip(rows, truth, strict=True)}


def gold_file(path: Path, gold: dict[str, str]) -> Path:
    """The labels as a gold file."""
    path.write_text(
        "".join(json.dumps({"id": name, "label": label}) + "\n" for name, label in gold.items()),
        encoding="utf-8",
    )
    return path
