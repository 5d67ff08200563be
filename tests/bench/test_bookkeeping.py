"""Everything around the model: is it ever short of work, what do ledger and bookkeeping cost, does memory
stay flat?

``python -m pytest -m bench tests/bench -s`` prints what was measured. On a machine that does something else
meanwhile, times are longer.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.run.commit_buffer import CommitBuffer
from pipeline.run.runner import run
from pipeline.run.work_loop import WorkLoop
from pipeline.run.worker_pool import WorkerPool
from pipeline.stores.ledger.ledger import Ledger
from pipeline.tasks.driver import TaskDriver
from tests.bench import nights

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]


def script(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    monkeypatch.setenv("OVERNIGHT_SCRIPT", json.dumps(settings))


@pytest.mark.parametrize(
    ("documents", "batch"),
    [
        pytest.param({"count": 300}, 1, id="one at a time"),
        pytest.param({"count": 400}, 8, id="batches"),
        pytest.param(
            {"count": 100, "long_every": 50, "long_sentences": 2000}, 8, id="two long ones among short ones"
        ),
        pytest.param({"count": 1, "sentences": 8000}, 8, id="one long one"),
    ],
)
def test_the_model_is_never_short_of_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: dict[str, int], batch: int
) -> None:
    """Twenty prompts a second, of a model that takes three seconds to load; waiting counts from then on."""
    script(monkeypatch, seconds=0.05, batch=batch, load_seconds=3)
    config = nights.configured(tmp_path, nights.texts(**documents), "summarize", batch_rows=8)
    assert run(config).exit_code == 0
    times = nights.waiting(config)
    share = times["waited_seconds"] / times["seconds"]
    print(f"\nwaited for work {share:.2%} of {times['seconds']:.1f} s")
    assert share <= 0.03


def test_ledger_and_bookkeeping_take_a_hundredth_at_twenty_documents_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wall time in the ledger, commits and all, and in the bookkeeping of documents under way, without
    tokenizing.
    """
    script(monkeypatch, seconds=0.05, batch=1)
    kinds = ("ledger", "tokenizing and tasks", "bookkeeping", "waiting for the worker")
    spent, computed = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0.0)

    def timed(kind: str, owner: type, name: str) -> None:
        method: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(method)
        def measured(*arguments: Any, **named: Any) -> Any:
            started, computing = time.monotonic(), time.thread_time()
            try:
                return method(*arguments, **named)
            finally:
                spent[kind] += time.monotonic() - started
                computed[kind] += time.thread_time() - computing

        monkeypatch.setattr(owner, name, measured)

    for name in ("mark", "finish", "pending", "replies"):
        timed("ledger", Ledger, name)
    timed("tokenizing and tasks", TaskDriver, "_advance")
    for name in ("begin", "requests", "receive", "landed", "cancelled", "wanted"):
        timed("bookkeeping", TaskDriver, name)
    timed("bookkeeping", CommitBuffer, "add")
    timed("bookkeeping", WorkLoop, "_has_room")
    timed("bookkeeping", WorkerPool, "admit")
    timed("waiting for the worker", WorkerPool, "collect")
    config = nights.configured(tmp_path, nights.texts(600))
    assert run(config).exit_code == 0
    seconds = nights.waiting(config)["seconds"]
    for times in (spent, computed):
        times["bookkeeping"] -= times["tokenizing and tasks"]
    print(
        f"\nof {seconds:.1f} s: "
        + ", ".join(
            f"{kind} {spent[kind] / seconds:.2%} (cpu {computed[kind] / seconds:.2%})" for kind in kinds
        )
    )
    assert (spent["ledger"] + spent["bookkeeping"]) / seconds <= 0.01


def test_memory_is_flat_from_a_thousand_to_a_hundred_thousand_documents(tmp_path: Path) -> None:
    few, many = (_night(tmp_path / str(count), count) for count in (1_000, 100_000))
    grown = many["peak_bytes"] - few["peak_bytes"]
    print(
        f"\n{grown / 1e6:.0f} MB more; {many['seconds']:.0f} s, of it {many['cpu_seconds']:.0f} s of "
        f"processor time in the runner"
    )
    assert grown < 150e6  # of it 64 MiB are the page cache of each of two connections to the ledger
    assert many["cpu_seconds"] < 150 * few["cpu_seconds"]


def test_a_million_finished_documents_are_found_finished_within_a_minute(tmp_path: Path) -> None:
    count = 1_000_000
    config = nights.configured(tmp_path, nights.texts(count))
    assert run(config, limit=1).exit_code == 0
    nights.finish_all(config)
    again = _night(tmp_path, count)
    few = _night(tmp_path / "few", 1_000)
    print(
        f"\n{again['seconds']:.1f} s, {(again['peak_bytes'] - few['peak_bytes']) / 1e6:.0f} MB more than "
        f"a thousand take"
    )
    assert again["done"] == count
    assert again["seconds"] <= 60
    assert again["peak_bytes"] - few["peak_bytes"] < 150e6


def _night(folder: Path, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.nights", str(folder), str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    facts: dict[str, Any] = json.loads(done.stdout)
    assert facts["exit_code"] == 0
    return facts
