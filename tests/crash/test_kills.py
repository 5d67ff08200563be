"""kill -9 at random moments: the same command finishes, and the export equals that of a run nobody
touched.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.nights import ANight, documents, no_process_left

PACE = {"seconds": 0.05, "batch": 4}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    night = ANight(tmp_path_factory.mktemp("undisturbed"), documents(60))
    done = night.run()
    assert done.returncode == 0, done.stderr
    return night.export()


def kill_and_finish(night: ANight, kills: int, seed: int) -> list[dict[str, object]]:
    chance = random.Random(seed)
    killed = 0
    for _ in range(kills):
        killed += night.run_and_kill(chance.uniform(0.1, 2.0)) == -signal.SIGKILL
    assert killed, "every run finished before it was killed: the test shows nothing"
    night.script = {}
    done = night.run()
    assert done.returncode == 0, done.stderr
    return night.export()


def test_killed_runs_end_like_an_undisturbed_one(
    tmp_path: Path, undisturbed: list[dict[str, object]]
) -> None:
    night = ANight(tmp_path, documents(60), script=PACE)
    assert kill_and_finish(night, 4, seed=1) == undisturbed
    assert no_process_left(tmp_path)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 4))
def test_twenty_kills(tmp_path: Path, undisturbed: list[dict[str, object]], seed: int) -> None:
    night = ANight(tmp_path, documents(60), script=PACE)
    assert kill_and_finish(night, 20, seed) == undisturbed
    assert no_process_left(tmp_path)


LONG = [
    *documents(24),
    *(
        {"id": f"long{number}", "text": long}
        for number, long in enumerate(
            " ".join(f"{word} sentence number {place} goes on and on." for place in range(150))
            for word in ("alpha", "beta", "gamma")
        )
    ),
]


def kill_something(night: ANight, chance: random.Random) -> str:
    """SIGKILL to the runner, or to the worker under a runner that goes on; what became of it."""
    process = night.start("run", str(night.config))
    try:
        process.wait(chance.uniform(0.1, 2.5))
    except subprocess.TimeoutExpired:
        worker = _worker_of(process.pid)
        if worker is not None and chance.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.3, 3.0))  # the runner starts another one, until it dies too
        process.kill()
    process.communicate(timeout=60)
    return "killed" if process.returncode == -signal.SIGKILL else f"ended with {process.returncode}"


def kill_anything(folder: Path, kills: int, seed: int) -> None:
    """Random kills of runner and worker over two tasks and long documents; the end is that of a run nobody
    touched.
    """
    more = {
        "run": {"directory": str(folder / "killed" / "run"), "max_attempts": 1000}
    }  # kills by us are no document's fault
    untouched = ANight(folder / "untouched", LONG)
    assert untouched.run().returncode == 0
    night = ANight(
        folder / "killed", LONG, script={"seconds": 0.1 if kills < 10 else 0.5, "batch": 4}, extra=more
    )
    chance = random.Random(seed)
    ends = [kill_something(night, chance) for _ in range(kills)]
    assert ends.count("killed") > kills // 3, ends
    assert set(ends) <= {"killed", "ended with 0"}
    night.script = {}
    done = night.run()
    assert done.returncode == 0, done.stderr
    assert night.export() == untouched.export()
    for states in night.status()["tasks"].values():
        assert states["done"] == sum(states.values()) == len(LONG)
    assert _most_ends(night) == 1
    assert no_process_left(folder)


def test_kills_of_runner_and_worker(tmp_path: Path) -> None:
    kill_anything(tmp_path, 3, seed=11)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_fifty_kills_of_runner_and_worker(tmp_path: Path) -> None:
    kill_anything(tmp_path, 50, seed=12)


def test_a_signal_stops_within_seconds_and_resumes(
    tmp_path: Path, undisturbed: list[dict[str, object]]
) -> None:
    night = ANight(tmp_path, documents(60), script={"seconds": 0.1, "batch": 4})
    for number in (signal.SIGTERM, signal.SIGINT):
        enough = _done(night) + 3
        process = night.start("run", str(night.config))
        _wait_until(lambda enough=enough: _done(night) >= enough)
        process.send_signal(number)
        asked = time.monotonic()
        _, err = process.communicate(timeout=30)
        assert process.returncode == 75, err
        assert time.monotonic() - asked < 8
        assert "Traceback" not in err
    assert no_process_left(tmp_path)
    night.script = {}
    assert night.run().returncode == 0
    assert night.export() == undisturbed


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(5), script={"load_seconds": 60})
    process = night.start("run", str(night.config))
    _wait_until((night.directory / "worker.log").exists)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 75
    assert no_process_left(tmp_path)


def test_a_second_run_on_the_same_directory_gets_a_sentence(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(5), script={"load_seconds": 60})
    process = night.start("run", str(night.config))
    try:
        _wait_until((night.directory / "worker.log").exists)
        second = night.run()
        assert second.returncode == 75
        assert f"process {process.pid}" in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        process.kill()
        process.communicate()
    assert no_process_left(tmp_path)
    night.script = {}
    assert night.run().returncode == 0  # the lock went with its holder


def test_the_deadline_stops_and_resumes(tmp_path: Path, undisturbed: list[dict[str, object]]) -> None:
    left_seconds = 60 - time.localtime().tm_sec
    moment = time.localtime(time.time() + left_seconds + 1)  # the start of the next minute
    if not 15 <= left_seconds <= 40:  # a run that begins after the deadline takes it for tomorrow's
        pytest.skip("the next full minute is too far away for the quick tier, or too near")
    night = ANight(
        tmp_path,
        documents(60),
        script={"seconds": 2, "batch": 4},
        extra={"run": {"deadline": time.strftime("%H:%M", moment)}},
    )
    done = night.run()
    assert done.returncode == 75, done.stderr
    assert "deadline" in done.stdout
    night.script = {}
    assert night.run("--set", "run.deadline=null").returncode == 0
    assert night.export() == undisturbed


def _worker_of(pid: int) -> int | None:
    found = subprocess.run(
        ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    return int(found[0]) if found else None


def _most_ends(night: ANight) -> int:
    """How often the work that ended most often has ended."""
    query = (
        "SELECT max(ended) FROM (SELECT count(*) AS ended FROM attempts WHERE outcome = 'done' GROUP "
        "BY task_id, key)"
    )
    with closing(sqlite3.connect(night.directory / "ledger.sqlite")) as ledger:
        return int(ledger.execute(query).fetchone()[0])


def _done(night: ANight) -> int:
    try:
        counts = night.status()
    except AssertionError:  # not there yet
        return 0
    return sum(states["done"] for states in counts["tasks"].values())


def _wait_until(condition: object, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]  # a plain callable
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.1)
