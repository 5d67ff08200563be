from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.errors import DocumentFailed
from pipeline.run.runner_watchdog import RunnerWatchdog

WORK = ("topic", "0123456789abcdef")


_DIES = """
import os, signal, sys
from pathlib import Path
from pipeline.run.runner_watchdog import RunnerWatchdog

with RunnerWatchdog(Path(sys.argv[1]), 1000) as here, here.at((sys.argv[2], sys.argv[3])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def left_by_a_dead_run(path: Path) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", _DIES, str(path), *WORK], cwd=Path(__file__).parents[2], check=False
    )
    assert dead.returncode == -signal.SIGKILL


def test_a_run_that_ends_leaves_nothing(tmp_path: Path) -> None:
    with RunnerWatchdog(tmp_path / "note", 1000) as here:
        assert here.died_in is None
        with here.at(WORK):
            assert RunnerWatchdog(tmp_path / "note", 1000).died_in == WORK
        assert RunnerWatchdog(tmp_path / "note", 1000).died_in is None
    assert not (tmp_path / "note").exists()


def test_the_note_of_a_dead_run_stays_until_it_is_settled(tmp_path: Path) -> None:
    path = tmp_path / "note"
    left_by_a_dead_run(path)
    with RunnerWatchdog(path, 1000):
        pass  # refused before it began
    with RunnerWatchdog(path, 1000) as here:
        assert here.died_in == WORK
        here.settle()
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"\0" * 512, b"[1, 2]", b'"x"', b"{}", b"\xff\xfe", b'["a"'])
def test_a_strange_note_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "note").write_bytes(content)
    assert RunnerWatchdog(tmp_path / "note", 1000).died_in is None


def test_what_takes_too_long_is_interrupted_and_what_follows_is_not(tmp_path: Path) -> None:
    def stall() -> None:
        with here.at(WORK):
            time.sleep(1000)

    with RunnerWatchdog(tmp_path / "note", 1.5) as here:
        with pytest.raises(DocumentFailed, match="busy for 2 s"):
            stall()
        time.sleep(1.2)
        with here.at(WORK):
            time.sleep(0.2)


def test_a_place_that_cannot_be_written_to_is_no_reason_to_stop(tmp_path: Path) -> None:
    with RunnerWatchdog(tmp_path / "missing" / "note", 1000) as here, here.at(WORK):
        assert here.died_in is None
