"""A run directory of version 0.1.0 (commit 478e7e4), as the code of then left it when it was killed.

Its first run ended over four documents, by our decoder, with a store; its second, of ``engine.decoder:
transformers``, was killed: works are done, failed, running and pending. ``478e7e4/make.py`` says how it was
made.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

RECORDED = Path(__file__).parent / "478e7e4"
TASKS: list[dict[str, Any]] = [
    {"name": "topic", "kind": "label", "labels": ["world", "sports", "business"], "abstain_below": 0.34},
    {
        "name": "summary",
        "kind": "summarize",
        "instructions": "Sum up {{ title }}.",
        "max_output_tokens": 12,
        "long_documents": "map_reduce",
    },
    {"name": "short", "kind": "summarize", "max_output_tokens": 6, "long_documents": "fail"},
]


def restore(folder: Path) -> Path:
    """The run directory in ``folder``, beside its model, source and configuration: names are relative, so
    programs must run there.
    """
    shutil.copytree(RECORDED / "model", folder / "model")
    shutil.copy(RECORDED / "in.jsonl", folder / "in.jsonl")
    run = folder / "run"
    shutil.copytree(RECORDED / "kv", run / "kv")
    statements = (RECORDED / "ledger.sql").read_text(encoding="utf-8").replace("{folder}", str(folder))
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger:
        ledger.executescript(statements)
        ledger.execute("PRAGMA journal_mode=WAL")
    configure(folder, TASKS)
    return run


def configure(folder: Path, tasks: list[dict[str, Any]]) -> None:
    """Write the configuration of then, without its retired key, over ``tasks``."""
    raw = {
        "model": {"id": "model", "quantization": "none", "dtype": "float32"},
        "kv_cache": {"store": {"documents": "always"}},
        "source": {"path": "in.jsonl"},
        "tasks": tasks,
        "generation": {"layout": "document_first"},
        "engine": {"batch_rows": 1, "threads": 1},
        "run": {"directory": "run"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")


def results(run: Path) -> dict[tuple[int, str], tuple[Any, ...]]:
    """All rows of results, by task and key."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger:
        return {row[:2]: row for row in ledger.execute("SELECT * FROM results")}


def states(run: Path) -> dict[tuple[str, str], int]:
    """How many works of each task are in each state."""
    query = "SELECT name, state, count(*) FROM work JOIN tasks ON tasks.id = task_id GROUP BY name, state"
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger:
        return {(name, state): count for name, state, count in ledger.execute(query)}
