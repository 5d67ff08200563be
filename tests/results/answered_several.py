"""A finished task with several labels a document, whose truth is known: real ledger, no engine. The model
says yes too often.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from pipeline.records import TaskJob
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import LEDGER
from tests.stores.ledger.ledgers import document, done, read

LABELS = ("urgent", "legal", "money")
SHARES = (0.5, 0.3, 0.15)
_BIAS = (2.0, 3.0, 2.5)  # log-odds of yes that the model adds whatever the text


def finished_several(folder: Path, count: int = 200, seed: int = 3) -> dict[str, list[str]]:
    """A run directory ``folder/run`` with the task tags finished over ``folder/in.jsonl``; returns the true
    labels.
    """
    generator = np.random.default_rng(seed)
    truth = generator.random((count, len(LABELS))) < np.array(SHARES)
    odds = np.where(truth, 2.0, -2.0) + generator.normal(size=truth.shape) + np.array(_BIAS)
    yes = 1 / (1 + np.exp(-odds))
    rows = [
        document(f"d{number}", f"letter {number} " + " ".join(np.array(LABELS)[row]), line=number + 1)
        for number, row in enumerate(truth)
    ]
    source = folder / "in.jsonl"
    source.write_text(
        "".join(json.dumps({"id": row.id, "text": row.text}) + "\n" for row in rows), encoding="utf-8"
    )
    task = {"kind": "label", "labels": [[name, None] for name in LABELS], "multi": True}
    config = {
        "model": {"id": "scripted"},
        "source": {"path": str(source)},
        "run": {"directory": str(folder / "run")},
        "tasks": [{"name": "tags", "kind": "label", "labels": list(LABELS), "multi": True}],
    }
    (folder / "run").mkdir()
    with Ledger.open(folder / "run" / LEDGER, write=True) as ledger:
        ledger.accept_tasks([TaskJob("tags", "label", {"task": task})], fork=False)
        run = ledger.begin_run({"config": config})
        read(ledger, run, rows)
        outcomes = []
        for row, values in zip(rows, yes, strict=True):
            said = dict(zip(LABELS, map(float, values), strict=True))
            given = [name for name, value in said.items() if value >= 0.5]
            logs = {name: float(np.log(value)) for name, value in said.items()}
            outcomes.append(done("tags", row.key, given, probabilities=said, scores=logs))
        ledger.finish(run, outcomes)
    return {
        row.id: [name for name, held in zip(LABELS, held_all, strict=True) if held]
        for row, held_all in zip(rows, truth, strict=True)
    }
