"""Whole runs over other workers than the product's one process: in this process, and several of them."""

from __future__ import annotations

import functools
import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import load_config
from pipeline.results.export import export
from pipeline.run import entered
from pipeline.run.in_process_worker import in_process_workers
from pipeline.run.runner import run
from pipeline.run.worker_pool import WorkerPool
from pipeline.stores.ledger.ledger import Ledger
from tests.nights import TASKS, ANight, documents
from tests.run.workers import script


def exported(night: ANight) -> list[dict[str, Any]]:
    output = night.folder / "out.jsonl"
    with Ledger.open(night.directory / "ledger.sqlite", write=False) as ledger:
        export(ledger, output, force=True)
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def attempts(night: ANight) -> Counter[str]:
    with closing(sqlite3.connect(night.directory / "ledger.sqlite")) as ledger:
        return Counter(outcome for (outcome,) in ledger.execute("SELECT outcome FROM attempts"))


def test_a_run_in_this_process_answers_as_one_with_a_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, batch=3)
    nights = [ANight(tmp_path / name, documents(12)) for name in ("process", "here")]
    assert run(load_config(nights[0].config)).exit_code == 0
    assert run(load_config(nights[1].config), workers=in_process_workers).exit_code == 0
    assert exported(nights[0]) == exported(nights[1])
    assert not (nights[1].directory / "worker.log").exists()


def test_several_workers_and_one_document_that_kills_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = documents(20, longest=4)
    clean = ANight(tmp_path / "clean", rows, TASKS[:1])
    script(monkeypatch)
    assert run(load_config(clean.config), workers=in_process_workers).exit_code == 0
    night = ANight(tmp_path / "bad", [*rows[:9], {"id": "bad", "text": "POISON"}, *rows[9:]], TASKS[:1])
    script(monkeypatch, batch=1, faults=[{"text": "POISON", "do": "no such fault"}])
    monkeypatch.setattr(entered, "WorkerPool", functools.partial(WorkerPool, size=3))
    assert run(load_config(night.config), workers=in_process_workers).exit_code == 3
    answers = {row["id"]: row for row in exported(night)}
    assert answers.pop("bad")["topic_status"] == "quarantined"
    assert list(answers.values()) == exported(clean)
    # nothing but the guilty one was ever given up, and nothing was begun twice
    assert attempts(night) == {"done": 20, "crashed": 3}
