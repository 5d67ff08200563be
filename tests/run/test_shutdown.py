"""However a process of ours ends, it ends by an exit code: no thread that still waits for something makes the
interpreter abort.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.run.protocol import Loaded, Release, encode, read_payload, write_message
from pipeline.run.worker_process import WorkerProcess
from tests.run.workers import PLAN, heard, local_process, script

_STARTS = [3, pytest.param(200, marks=[pytest.mark.full, pytest.mark.timeout(1500)])]
_TOGETHER = 8


def ended(workers: list[WorkerProcess]) -> list[int | None]:
    """The exit codes of workers that were told that this was all."""
    for worker in workers:
        worker.load(PLAN)
    for worker in workers:
        heard(worker, lambda messages: any(isinstance(message, Loaded) for message in messages), 180)
        worker.close()
    return [worker._process.returncode for worker in workers]


@pytest.mark.parametrize("starts", _STARTS)
def test_workers_that_are_started_and_stopped_end_by_themselves(
    starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch)
    codes: list[int | None] = []
    while len(codes) < starts:
        codes += ended([local_process(tmp_path) for _ in range(min(_TOGETHER, starts - len(codes)))])
    assert codes == [0] * starts
    assert "Fatal Python error" not in (tmp_path / "worker.log").read_text()


def test_a_worker_with_a_fault_of_ours_shows_it_and_ends(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pipeline.run.worker_main"], stdin=subprocess.PIPE, stderr=errors
        )
        assert process.stdin is not None
        write_message(process.stdin, Release((1,)))  # its first message can only be a configuration
        assert process.wait(60) == 1  # standard input is still open: the thread that reads it waits
        process.stdin.close()
    assert "AssertionError" in log.read_text()


_WAITING = """
import threading, time
from {module} import {function}
threading.Thread(target=lambda: {call}, daemon=True).start()
time.sleep(0.3)
"""


@pytest.mark.parametrize(
    ("module", "function", "call"),
    [
        ("flows.server", "_stop_with_parent", "_stop_with_parent()"),
        ("pipeline.run.worker_main", "_listen", "_listen(__import__('os').fdopen(0, 'rb', buffering=0))"),
    ],
)
def test_a_thread_that_waits_for_its_input_does_not_hold_up_the_end(
    module: str, function: str, call: str
) -> None:
    program = _WAITING.format(module=module, function=function, call=call)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    told = process.stderr.read()
    assert (process.wait(60), told) == (0, "")
    assert process.stdin is not None
    process.stdin.close()
    process.stderr.close()


class Dripping:
    """A pipe without a buffer: it takes and gives a few bytes at a time."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: memoryview) -> int:
        self._bytes += data[:3]
        return len(data[:3])

    def read(self, size: int) -> bytes:
        given = bytes(self._bytes[: min(size, 2)])
        del self._bytes[: len(given)]
        return given

    def flush(self) -> None:
        pass


def test_messages_are_whole_on_pipes_that_take_and_give_a_few_bytes() -> None:
    pipe: object = Dripping()
    message = Release(tuple(range(1000)))
    write_message(pipe, message)  # type: ignore[arg-type]  # the part of a stream that is used
    assert read_payload(pipe) == encode(message)  # type: ignore[arg-type]  # as above
    assert read_payload(pipe) is None  # type: ignore[arg-type]  # as above


def test_a_runner_that_ends_while_a_worker_is_silent_ends_by_its_code(tmp_path: Path) -> None:
    """The thread that listens to the worker waits; the runner leaves by an exception."""
    program = (
        "import sys; from pathlib import Path; from tests.run.workers import local_process; import time\n"
        f"worker = local_process(Path({str(tmp_path)!r})); time.sleep(0.2); sys.exit(75)"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (75, "")
    assert time.monotonic() - began < 30
