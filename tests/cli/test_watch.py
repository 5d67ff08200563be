"""``status`` and ``stop``: what they say of a run is so at that moment, also after a kill, and only this run
is stopped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.records import Progress
from pipeline.system.run_directory import RunDirectory
from pipeline.system.run_lock import RunLock
from tests.nights import TASKS, ANight, documents, no_process_left

_SECONDS = 60.0


@contextmanager
def running(night: ANight) -> Iterator[subprocess.Popen[str]]:
    process = night.start("run", str(night.config))
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def waited_for(night: ANight, phase: str) -> None:
    """Until the run says that it is in ``phase``; looked at beside the command, which takes its time."""
    until = time.monotonic() + _SECONDS
    lock = RunLock(night.directory)
    while (holder := lock.holder()) is None or holder.doing.get("stage") != phase:
        assert time.monotonic() < until, f"never came to {phase}: {holder}"
        time.sleep(0.02)


def slow(folder: Path, **script: Any) -> ANight:
    rows = documents(40, longest=3)
    return ANight(folder, rows, [TASKS[0]], {"seconds": 0.3, "batch": 2, **script})


def test_status_says_where_a_run_is_and_a_killed_one_computes_nothing(tmp_path: Path) -> None:
    night = slow(tmp_path, load_seconds=3)
    with running(night) as process:
        waited_for(night, "loading")
        run = night.status()["run"]
        assert (run["alive"], run["phase"]) == (True, "loading")
        waited_for(night, "working")
        time.sleep(1.5)
        found = night.status()
        run = found["run"]
        assert (run["alive"], run["phase"], run["held_by"]["pid"]) == (True, "working", process.pid)
        assert 0 < run["progress"]["done"] < run["progress"]["total"] == 40
        assert run["progress"]["tokens_per_second"] > 0
        assert 0 < run["progress"]["eta_seconds"] < 60
        assert found["tasks"]["topic"]["running"] > 0
        assert not found["complete"]
        words = night.command("status", str(night.directory)).stdout
        assert "a run is going on" in words
        assert f"process {process.pid} on " in words
        assert "left" in words
        assert "a run is going on" in night.command("report", str(night.directory)).stdout.lower()
        process.kill()
        process.wait()
    found = night.status()
    assert (found["run"]["alive"], found["run"]["cut_off"], found["run"]["progress"]) == (False, True, None)
    states = found["tasks"]["topic"]
    assert states["running"] == 0
    assert states["pending"] == 40 - states["done"] > 0
    assert {row["topic_status"] for row in night.export()} == {"done", "pending"}
    assert "cut off without a word" in night.command("status", str(night.directory)).stdout
    assert "was cut off" in night.command("report", str(night.directory)).stdout
    shown = [json.loads(night.command("show", str(night.directory), "d0039", "--json").stdout)]
    assert "running" not in json.dumps(shown)
    assert no_process_left(tmp_path)


def until(stream: Any, words: str) -> list[str]:
    """Lines up to the first with ``words`` in it."""
    lines = [stream.readline()]
    while words not in lines[-1]:
        assert lines[-1], f"it ended without {words}"
        lines.append(stream.readline())
    return lines


def test_following_goes_on_until_the_run_ends(tmp_path: Path) -> None:
    """Whoever follows sees what the holder of the lock says, and how the ledger says it ended."""
    night = ANight(tmp_path, documents(3, longest=3), [TASKS[0]])
    assert night.run().returncode == 0
    arguments = ("status", str(night.directory), "--follow")
    with RunDirectory(night.directory).locked() as held:
        held.say(asdict(Progress("loading", message="loading the model")))
        followers = [night.start(*arguments), night.start(*arguments, "--json")]
        lines = [until(follower.stdout, "loading") for follower in followers]
        held.say(asdict(Progress("working", 1, 0, 3, 310.0, 90.0)))
        lines = [
            [*before, *until(follower.stdout, "working")]
            for before, follower in zip(lines, followers, strict=True)
        ]
    told = [follower.communicate(timeout=_SECONDS) for follower in followers]
    assert [(follower.returncode, err) for follower, (_, err) in zip(followers, told, strict=True)] == [
        (0, "")
    ] * 2
    assert "working 1/3 310 tokens/s, " in lines[0][-1]
    assert told[0][0].splitlines()[-3:-1] == [
        "3 documents, 0 rejected, 0 repeated; complete",
        "topic: 3 done",
    ]
    assert "the last one ended" in told[0][0].splitlines()[-1]
    objects = [json.loads(line) for line in [*lines[1], *told[1][0].splitlines()]]
    assert [found["run"]["alive"] for found in objects] == [True] * (len(objects) - 1) + [False]
    assert objects[0]["run"]["phase"] == "loading"
    assert objects[-1]["run"]["last"]["reason"] == "done"


def test_stop_ends_a_run_as_ctrl_c_would(tmp_path: Path) -> None:
    night = slow(tmp_path)
    with running(night) as process:
        waited_for(night, "working")
        stopped = night.command("stop", str(night.directory), "--json")
        assert stopped.returncode == 0, stopped.stderr
        assert f"process {process.pid}" in stopped.stderr
        out, _ = process.communicate(timeout=_SECONDS)
    assert process.returncode == 75
    assert "Stopped early (overnight stop)" in out
    found = json.loads(stopped.stdout)
    assert (found["run"]["alive"], found["run"]["last"]["exit_code"]) == (False, 75)
    assert found["run"]["last"]["reason"] == "overnight stop"
    assert found["tasks"]["topic"]["running"] == 0
    again = night.command("stop", str(night.directory))
    assert again.returncode == 2
    assert "no run is going on" in again.stderr
    night.script = {}
    assert night.run().returncode == 0  # what was asked of the first run does not stop the second
    assert no_process_left(tmp_path)


def test_stop_while_the_model_is_loaded(tmp_path: Path) -> None:
    night = slow(tmp_path, load_seconds=300)
    with running(night) as process:
        waited_for(night, "loading")
        assert night.command("stop", str(night.directory)).returncode == 0
        assert process.wait(_SECONDS) == 75


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that nobody may end: its number is in a note that is not its own."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    lives = process.poll() is None
    process.kill()
    process.wait()
    assert lives


def rewritten(directory: Path, **facts: object) -> None:
    place = directory / "lock.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **facts}))


def test_a_dead_runs_number_is_nobodys(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:
    night = slow(tmp_path)
    with running(night) as process:
        waited_for(night, "working")
        process.kill()
        process.wait()
    rewritten(night.directory, pid=bystander.pid)
    done = night.command("stop", str(night.directory))
    assert done.returncode == 2
    assert "no run is going on" in done.stderr
    assert not night.status()["run"]["alive"]


def test_a_run_on_another_machine_is_asked_and_never_signalled(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    """The lock is held, as over a shared file system; the number in the note is that of a process here."""
    night = ANight(tmp_path, documents(3), [TASKS[0]])
    assert night.run().returncode == 0
    with RunDirectory(night.directory).locked() as held:
        rewritten(night.directory, pid=bystander.pid, host="another-machine")
        stopping = night.start("stop", str(night.directory))
        told: list[str] = []
        thread = threading.Thread(target=lambda: told.extend(stopping.communicate(timeout=_SECONDS)))
        thread.start()
        until = time.monotonic() + _SECONDS
        while not held.is_asked_to_stop:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert stopping.poll() is None  # it waits for the end
    thread.join()
    assert stopping.returncode == 0
    assert "on another-machine" in told[1]


@pytest.mark.parametrize("command", ["calibrate", None])
def test_who_is_no_run_is_not_stopped(tmp_path: Path, command: str | None) -> None:
    night = ANight(tmp_path, documents(3), [TASKS[0]])
    assert night.run().returncode == 0
    with RunDirectory(night.directory).locked(command or "run") as held:
        if command is None:
            (night.directory / "lock.json").write_text("unreadable")
        done = night.command("stop", str(night.directory))
        assert done.returncode == 2
        assert "is in use by" in done.stderr
        assert not held.is_asked_to_stop


def test_a_folder_that_is_no_run_directory(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(1))
    done = night.command("stop", str(tmp_path))
    assert done.returncode == 2
    assert "is not a run directory" in done.stderr
