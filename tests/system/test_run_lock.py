"""The lock of a run directory: its holder is known while it lives, whatever the dead leave behind, and only
he is asked to stop.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.errors import AlreadyRunning, StoppedEarly
from pipeline.system.run_lock import RunLock
from pipeline.system.stop_signal import StopSignal

_HOLDS = """
import sys, time
from pathlib import Path
from pipeline.system.run_lock import RunLock
with RunLock(Path(sys.argv[1])).held("run") as held:
    held.say({"stage": "working"})
    print("held", flush=True)
    time.sleep(600)
"""


def holding(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", _HOLDS, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_its_holder_is_known_while_it_lives(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    assert lock.holder() is None
    process = holding(tmp_path)
    try:
        holder = lock.holder()
        assert holder is not None
        assert (holder.command, holder.pid, holder.host) == ("run", process.pid, socket.gethostname())
        assert holder.doing == {"stage": "working"}
        with (
            pytest.raises(AlreadyRunning, match=f"process {process.pid} .*overnight stop "),
            lock.held("run"),
        ):
            pass
    finally:
        ended(process)
    assert (tmp_path / "lock.json").exists()  # what a dead one leaves is nobody
    assert lock.holder() is None
    with lock.held("retry"):
        found = lock.holder()
        assert found is not None
        assert (found.command, found.pid, found.doing) == ("retry", os.getpid(), {})
        with pytest.raises(AlreadyRunning, match=r"for a moment.*overnight retry"), lock.held("run"):
            pass
    assert sorted(place.name for place in tmp_path.iterdir()) in ([], ["lock"])


def test_looking_keeps_nobody_from_starting(tmp_path: Path) -> None:
    lock, done = RunLock(tmp_path), threading.Event()

    def look() -> None:
        while not done.is_set():
            lock.holder()

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(30):
            with lock.held("run"):
                pass
    finally:
        done.set()
        for looker in lookers:
            looker.join()


def test_only_who_is_asked_stops(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    with lock.held("run") as first:
        early = lock.holder()
        assert early is not None
        assert not first.is_asked_to_stop
        lock.ask_to_stop(early)
        assert first.is_asked_to_stop
    with lock.held("run") as second:
        lock.ask_to_stop(early)  # too late
        assert not second.is_asked_to_stop
    with lock.held("run"):
        assert not list(tmp_path.glob("stop.*"))


def test_a_request_becomes_a_wish_to_stop() -> None:
    asked, stop = threading.Event(), StopSignal()
    with stop.watch_request(asked.is_set, "overnight stop"):
        stop.check()
        asked.set()
        time.sleep(1.5)
    with pytest.raises(StoppedEarly, match="overnight stop"):
        stop.check()


def test_words_are_few_and_a_new_stage_is_said_at_once(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    with lock.held("run") as held:
        told = []
        for doing in ({"stage": "a", "n": 1}, {"stage": "a", "n": 2}, {"stage": "b", "message": "x" * 9999}):
            held.say(doing)
            holder = lock.holder()
            assert holder is not None
            told.append(holder.doing)
        assert told[0] == told[1] == {"stage": "a", "n": 1}
        assert (told[2]["stage"], len(str(told[2]["message"]))) == ("b", 500)


def test_a_note_that_says_nothing_is_no_reason_to_fail(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    with lock.held("run"):
        for note in ("", "4711", '{"later": "version"}', "[1]", "\0" * 100):
            (tmp_path / "lock.json").write_text(note)
            holder = lock.holder()
            assert holder is not None
            assert "left no note" in holder.name
