"""Turns in a run directory: another kind is waited for, the same kind and strangers are not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from flows.turns import take_turn
from pipeline.errors import AlreadyRunning, StoppedEarly
from pipeline.records import Progress
from pipeline.system.run_directory import RunDirectory
from pipeline.system.stop_signal import StopSignal


def start_in(directory: str) -> str:
    with RunDirectory(directory).locked():
        return "ran"


def test_second_flow_of_a_kind_is_refused(tmp_path: Path) -> None:
    with (
        take_turn(str(tmp_path), "label"),
        pytest.raises(AlreadyRunning, match="another label run"),
        take_turn(str(tmp_path), "label"),
    ):
        pass
    with take_turn(str(tmp_path), "label"):
        pass  # it goes with its holder


def test_a_stranger_is_not_waited_for(tmp_path: Path) -> None:
    directory = str(tmp_path)
    refused = pytest.raises(AlreadyRunning, match="in use by another run")
    with RunDirectory(directory).locked(), take_turn(directory, "label") as turn, refused:
        turn.when_free(lambda: start_in(directory), lambda progress: None, StopSignal())


def test_another_kind_is_waited_for(tmp_path: Path) -> None:
    directory, said, holding, done = str(tmp_path), list[Progress](), threading.Event(), threading.Event()

    def summarize() -> None:
        with take_turn(directory, "summarize"), RunDirectory(directory).locked():
            holding.set()
            done.wait(30)

    other = threading.Thread(target=summarize)
    other.start()
    holding.wait(30)

    def hear(progress: Progress) -> None:
        said.append(progress)
        done.set()

    with take_turn(directory, "label") as turn:
        assert turn.when_free(lambda: start_in(directory), hear, StopSignal()) == "ran"
    other.join()
    assert "waiting for the summarize run" in said[0].message


def test_waiting_can_be_stopped(tmp_path: Path) -> None:
    directory, stop = str(tmp_path), StopSignal()
    stopped = pytest.raises(StoppedEarly, match="signal SIGTERM")
    with (
        take_turn(directory, "summarize"),
        RunDirectory(directory).locked(),
        take_turn(directory, "label") as turn,
        stopped,
    ):
        turn.when_free(lambda: start_in(directory), lambda progress: stop.request("signal SIGTERM"), stop)
