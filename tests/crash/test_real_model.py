"""The real demo model killed in the middle: the runner, and the worker under it. The end is that of an
undisturbed night.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.nights import ANight, no_process_left

ROOT = Path(__file__).parents[2]
TASKS: list[dict[str, Any]] = [
    {"name": "topic", "kind": "label", "labels": ["world", "sports", "business", "science"]},
    {"name": "summary", "kind": "summarize", "max_output_tokens": 12},
]
EXTRA = {
    "model": {
        "id": "smollm2-135m-instruct",
        "quantization": "none",
        "dtype": "float32",
        "context_tokens": 1024,
    },
    "engine": {"batch_rows": 3},
}


class Undisturbed(NamedTuple):
    rows: list[dict[str, Any]]
    seconds: float  # of work, after loading


def reports(count: int) -> list[dict[str, Any]]:
    lines = (ROOT / "data" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
    return sorted(map(json.loads, lines), key=lambda row: len(row["text"]))[:count]


def a_night(folder: Path, count: int) -> ANight:
    # Kills by us must not look like a guilty document, so quarantine takes more deaths than there are kills.
    return ANight(
        folder,
        reports(count),
        tasks=TASKS,
        extra={**EXTRA, "run": {"directory": str(folder / "run"), "max_attempts": 9}},
    )


@pytest.fixture(scope="module", params=[4, pytest.param(12, marks=pytest.mark.full)])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_model_folder: Path
) -> Undisturbed:
    """A night over so many documents that nothing happens to."""
    night = a_night(tmp_path_factory.mktemp("undisturbed"), request.param)
    process = night.start("run", str(night.config))
    try:
        _wait_loaded(night, None)
        started = time.monotonic()
        _, err = process.communicate(timeout=200)
    finally:
        _end(process)
    assert process.returncode == 0, err
    seconds = time.monotonic() - started
    rows = night.export()
    assert all(row["topic_status"] == row["summary_status"] == "done" for row in rows)
    return Undisturbed(rows, seconds)


def kill_runner(night: ANight, chance: random.Random, seconds: float) -> None:
    """SIGKILL to the runner while the model works; its worker goes with it."""
    before, left = _loaded(night), _left(night)
    process = night.start("run", str(night.config))
    try:
        _wait_loaded(night, before)
        time.sleep(chance.uniform(0, 0.7 * seconds * left))
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    finally:
        _end(process)
    assert process.returncode == -signal.SIGKILL, err
    assert no_process_left(night.folder)


def kill_worker(night: ANight, chance: random.Random, seconds: float, kills: int) -> None:
    """SIGKILL to the worker, ``kills`` times in one run, which goes on by itself and ends well."""
    before = _loaded(night)
    process = night.start("run", str(night.config))
    killed = set()
    try:
        for _ in range(kills):
            before = _wait_loaded(night, before)
            time.sleep(chance.uniform(0, 0.7 * seconds * _left(night)))
            worker = _worker_of(process.pid)
            os.kill(worker, signal.SIGKILL)
            killed.add(worker)
        _, err = process.communicate(timeout=250)
    finally:
        _end(process)
    assert len(killed) == kills
    assert process.returncode == 0, err
    assert "Traceback" not in err


def check(night: ANight, undisturbed: Undisturbed) -> None:
    rows = night.export()
    for row, expected in zip(rows, undisturbed.rows, strict=True):
        found, wanted = row.pop("topic_probabilities"), expected["topic_probabilities"]
        assert found == pytest.approx(wanted, abs=2e-3)  # score_tolerance, from both sides
        assert row.pop("topic_probability") == pytest.approx(expected["topic_probability"], abs=2e-3)
        assert row == {name: value for name, value in expected.items() if not name.startswith("topic_prob")}
    for states in night.status()["tasks"].values():
        assert states["done"] == sum(states.values()) == len(rows)
    once = (
        "SELECT max(ended), count(*) FROM (SELECT count(*) AS ended FROM attempts WHERE outcome = "
        "'done' GROUP BY task_id, key)"
    )
    assert _ask(night, once) == [(1, 2 * len(rows))]
    assert no_process_left(night.folder)


@pytest.mark.timeout(600)
def test_a_killed_runner_and_then_a_killed_worker(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """One story, for every start loads the model: the runner is killed, then the worker of the next run."""
    night, chance = a_night(tmp_path, len(undisturbed.rows)), random.Random(4)
    kill_runner(night, chance, undisturbed.seconds / 2)
    kill_worker(night, chance, undisturbed.seconds / 2, 1)
    assert _crashes(night) >= 1
    check(night, undisturbed)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_killed_runner(tmp_path: Path, undisturbed: Undisturbed) -> None:
    night = a_night(tmp_path, len(undisturbed.rows))
    kill_runner(night, random.Random(3), undisturbed.seconds)
    done = night.run()
    assert done.returncode == 0, done.stderr
    check(night, undisturbed)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_killed_worker(tmp_path: Path, undisturbed: Undisturbed) -> None:
    night = a_night(tmp_path, len(undisturbed.rows))
    kill_worker(night, random.Random(4), undisturbed.seconds, 1)
    assert _crashes(night) >= 1
    check(night, undisturbed)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_five_kills_of_each(tmp_path: Path, undisturbed: Undisturbed) -> None:
    night, chance = a_night(tmp_path, len(undisturbed.rows)), random.Random(5)
    for _ in range(5):
        kill_runner(night, chance, undisturbed.seconds / 4)
    kill_worker(night, chance, undisturbed.seconds / 4, 5)
    assert _crashes(night) >= 1
    check(night, undisturbed)


# ── looking on ──────────────────────────────────────────────────────────────────────────────────────────────


def _ask(night: ANight, query: str) -> list[tuple[Any, ...]]:
    address = (night.directory / "ledger.sqlite").as_uri() + "?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=30)) as ledger:
        return ledger.execute(query).fetchall()


def _loaded(night: ANight) -> str | None:
    """What the latest run says about the model that it has loaded last; differs from load to load, by its
    seconds.
    """
    if not (night.directory / "ledger.sqlite").exists():
        return None
    try:
        found = _ask(night, "SELECT id, json_extract(facts, '$.loaded') FROM runs ORDER BY id DESC LIMIT 1")
    except sqlite3.OperationalError:  # no tables yet
        return None
    return f"run {found[0][0]}: {found[0][1]}" if found and found[0][1] else None


def _left(night: ANight) -> float:
    """The share of the works that have no result yet."""
    if not (night.directory / "ledger.sqlite").exists():
        return 1.0
    return 1 - int(_ask(night, "SELECT count(*) FROM results")[0][0]) / (2 * len(night.rows))


def _crashes(night: ANight) -> int:
    return int(_ask(night, "SELECT count(*) FROM attempts WHERE outcome = 'crashed'")[0][0])


def _wait_loaded(night: ANight, before: str | None) -> str:
    """Wait until another model than ``before`` is loaded."""
    until = time.monotonic() + 120
    while (loaded := _loaded(night)) in (None, before):
        assert time.monotonic() < until, "the model was never loaded"
        time.sleep(0.05)
    assert loaded is not None
    return loaded


def _worker_of(pid: int) -> int:
    found = subprocess.run(
        ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(found) == 1
    return int(found[0])


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
