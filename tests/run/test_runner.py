"""How the runner keeps the worker supplied: counts of what is begun together, of commits, of loads. What
comes of it: tests/bench.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import load_config
from pipeline.records import Document, Origin, TaskJob
from pipeline.run import runner, work_queue
from pipeline.run.resource_guard import Activity, ResourceGuard
from pipeline.run.runner import run
from pipeline.run.work_queue import WorkItem
from pipeline.tasks import Work
from tests.nights import TASKS, ANight, documents
from tests.run.workers import script


class Silent:
    """A task that is never worked on."""

    job = TaskJob("t", "summarize", {})
    notes: tuple[str, ...] = ()

    def work(self, document: Document) -> Work:
        raise NotImplementedError


def pending(characters: int) -> WorkItem:
    return WorkItem(Silent(), Document(f"d{characters}", "x" * characters, Origin("f", 1)))


def test_works_are_begun_in_groups_of_bounded_size(monkeypatch: Any) -> None:
    monkeypatch.setattr(work_queue, "_GROUP_CHARACTERS", 100)
    short, huge = pending(10), pending(1000)
    works = iter([short, short, short, short, huge, short, None, short])
    groups = []
    exhausted = False
    while not exhausted:
        group, exhausted = work_queue.next_group(works, 3)
        groups.append([len(work.document.text) for work in group])
    assert groups == [[10, 10, 10], [10, 1000], [10], [10]]


def ask(night: ANight, query: str) -> Any:
    with closing(sqlite3.connect(night.directory / "ledger.sqlite")) as ledger:
        return ledger.execute(query).fetchone()


def test_commits_are_counted_in_seconds_not_in_documents(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(150, longest=3), [TASKS[0]], {"seconds": 0.004, "batch": 1})
    done = night.run()
    assert done.returncode == 0, done.stderr
    results, commits = ask(night, "SELECT count(*), count(DISTINCT recorded_at) FROM results")
    (seconds,) = ask(night, "SELECT ended_at - started_at FROM runs")
    assert results == len({(row["id"], row["text"]) for row in night.rows})
    assert commits <= seconds + 2
    (waiting,) = ask(night, "SELECT json_extract(facts, '$.waiting') FROM runs")
    times = json.loads(waiting)
    assert 0 <= times["waited_seconds"] <= times["seconds"] <= seconds
    assert "waited for work" in (night.directory / "report.md").read_text(encoding="utf-8")


def test_a_finished_night_starts_no_worker(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(3), [TASKS[0]])
    assert night.run().returncode == 0
    (night.directory / "worker.log").unlink()
    assert night.run().returncode == 0
    assert not (night.directory / "worker.log").exists()
    assert night.loads() == 1
    night.write_source(documents(4))
    assert night.run().returncode == 0
    assert night.loads() == 2
    assert night.status()["tasks"]["topic"]["done"] == 4


def test_memory_that_others_take_costs_one_worker_and_no_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending the worker did not help, so no other model is loaded and no text is suspected."""
    seen: list[Activity] = []

    class Guard(ResourceGuard):
        def check(self, activity: Activity) -> str | None:
            seen.append(activity)
            return super().check(activity)

    def guard(*arguments: Any, **named: Any) -> ResourceGuard:
        return Guard(*arguments, **named, free_memory_bytes=lambda: 0 if "computing" in seen else 1 << 60)

    monkeypatch.setattr(runner, "ResourceGuard", guard)
    script(monkeypatch, batch=1, seconds=0.3)
    night = ANight(tmp_path, documents(12, longest=3), [TASKS[0]])
    loads: list[str] = []
    result = run(load_config(night.config), observer=lambda told: loads.append(told.message))
    assert result.exit_code == 75
    assert "without a model in it" in result.reason
    assert loads.count("loading the model") == 1
    crashed = ask(night, "SELECT count(*) FROM attempts WHERE outcome = 'crashed'")
    assert crashed == (0,)
