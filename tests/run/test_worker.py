"""The contract of a worker, held by one in a process and by one in this process alike; and the deaths that
only a process can die.
"""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import parse_config
from pipeline.errors import UsageError, WorkerDied
from pipeline.run.protocol import Loaded, Refused, Replies, Says, Started, StoreFacts, write_message
from pipeline.run.worker import Worker
from tests.run.workers import PLAN, Start, asked, configured, heard, in_process, local_process, script


def say(kind: type) -> Any:
    return lambda messages: any(isinstance(message, kind) for message in messages)


def answered(messages: Any) -> set[int]:
    return {
        reply.request_id
        for message in messages
        if isinstance(message, Replies)
        for reply in message.generations
    }


def death(worker: Worker) -> str:
    with pytest.raises(WorkerDied) as died:
        heard(worker, lambda _: False)
    return str(died.value)


@pytest.fixture(params=[local_process, in_process], ids=["process", "in process"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Starts workers of one kind, which end with the test."""
    started: list[Worker] = []

    def begin(**engine: Any) -> Worker:
        started.append(request.param(tmp_path, **engine))
        return started[-1]

    yield begin
    for worker in started:
        worker.close(at_once=True)


def test_a_worker_loads_answers_and_is_closed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, batch=2)
    worker = start()
    assert worker.held.state == "starting"
    assert not worker.held.owes
    worker.load(PLAN)
    assert (worker.held.state, worker.held.owes) == ("loading", True)
    (loaded,) = [message for message in heard(worker, say(Loaded)) if isinstance(message, Loaded)]
    assert loaded.facts["device_map"] == {"": "cpu"}
    assert (worker.held.state, worker.held.owes) == ("loaded", False)
    requests = asked(*"abcde")
    worker.admit(requests)
    assert worker.held.leased == {request.request_id: request for request in requests}
    messages = heard(worker, lambda messages: len(answered(messages)) == 5)
    assert [message.request_ids for message in messages if isinstance(message, Started)] == [
        (1, 2),
        (3, 4),
        (5,),
    ]
    assert (worker.held.leased, worker.held.started, worker.held.owes) == ({}, set(), False)
    assert 0 <= worker.held.waited_seconds <= worker.held.served_seconds
    assert worker.held.ram_bytes > 10**6
    worker.close()
    assert "closed" in death(worker) or "exit code 0" in death(worker)


def test_what_is_released_is_not_held_and_not_answered(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, batch=1, seconds=0.05)
    worker = start()
    worker.load(PLAN)
    heard(worker, say(Loaded))
    worker.admit(asked(*"abcdefgh"))
    worker.release([7, 8, 99])
    assert list(worker.held.leased) == [1, 2, 3, 4, 5, 6]
    assert answered(heard(worker, lambda messages: len(answered(messages)) >= 6)) == {1, 2, 3, 4, 5, 6}


def test_the_same_question_has_the_same_answer_wherever_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch)
    answers = []
    for begin in (local_process, in_process):
        worker = begin(tmp_path)
        worker.load(PLAN)
        heard(worker, say(Loaded))
        worker.admit(asked("a", "b"))
        (replies,) = [m for m in heard(worker, say(Replies)) if isinstance(m, Replies)]
        answers.append([reply.token_ids for reply in replies.generations])
        worker.close()
    assert answers[0] == answers[1] != []


def test_a_model_that_cannot_be_opened_is_refused_with_its_sentence(start: Start) -> None:
    worker = start(backend="nowhere:Nothing")
    worker.load(PLAN)
    (refused,) = heard(worker, say(Refused))
    assert isinstance(refused, Refused)
    assert refused.error == "ConfigError"
    assert "nowhere:Nothing" in refused.text
    assert "refused" in death(worker) or "exit code 0" in death(worker)


def test_news_are_rung(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script(monkeypatch)
    for begin in (local_process, in_process):
        rung = threading.Event()
        worker = begin(tmp_path, rung.set)
        worker.load(PLAN)
        assert rung.wait(60)
        heard(worker, say(Loaded))
        rung.clear()
        worker.admit(asked("a"))
        assert rung.wait(60)
        worker.close(at_once=True)


def test_in_process_an_exception_of_the_engine_is_a_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, faults=[{"text": "bad", "do": "no such fault"}])
    worker = in_process(tmp_path)
    worker.load(PLAN)
    heard(worker, say(Loaded))
    worker.admit(asked("bad", "good"))
    assert death(worker) == "the worker ended by KeyError: 'no such fault'"
    assert list(worker.held.leased) == [1, 2]
    assert worker.held.started == {1, 2}


def test_a_process_that_talks_no_more_and_does_not_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mute.py"
    program.write_text("import os, time; os.close(1); time.sleep(600)")
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **named: real([sys.executable, str(program)], **named))
    monkeypatch.setattr("pipeline.run.worker_process._GRACE_SECONDS", 0.2)
    worker = local_process(tmp_path)
    worker.load(PLAN)
    assert death(worker).startswith("the worker stopped talking, did not end and was stopped")
    worker.close(at_once=True)


def test_half_a_character_in_the_configuration_is_told_and_starts_nothing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = configured(tmp_path).model_dump()
    raw["tasks"][0]["instructions"] = "Sum \ud800 up"
    monkeypatch.setattr("tests.run.workers.configured", lambda *_, **__: parse_config(raw))
    with pytest.raises(UsageError, match="half a character"):
        start()
    assert not (tmp_path / "worker.log").exists()


def test_a_process_that_dies_tells_first_what_it_had_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, batch=1, faults=[{"text": "bad", "do": "segfault"}])
    worker = local_process(tmp_path)
    worker.load(PLAN)
    heard(worker, say(Loaded))
    worker.admit(asked("good", "bad", "other"))
    assert answered(heard(worker, say(Replies))) == {1}
    assert death(worker) == "the worker was ended by SIGSEGV"
    assert list(worker.held.leased) == [2, 3]
    assert worker.held.started == {2}
    worker.admit(asked("late", first=4))  # telling a dead one something is no error
    worker.release([3])
    assert "SIGSEGV" in death(worker)
    worker.close()


@pytest.mark.parametrize("loading", [True, False])
def test_a_silent_process_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loading: bool) -> None:
    hang = {"load_fault": "hang"} if loading else {"faults": [{"text": "bad", "do": "hang"}]}
    script(monkeypatch, **hang)
    worker = local_process(tmp_path, stall_seconds=4)
    worker.load(PLAN)
    if not loading:
        heard(worker, say(Loaded))
        worker.admit(asked("bad"))
    assert death(worker) == "the worker made no progress for 4 s and was stopped (engine.stall_seconds)"
    worker.close()


JUNK = {
    "not ours": "b'Downloading shards: 100%'",
    "torn": "bytes.fromhex('6f766e31') + (1000).to_bytes(8, 'little') + b'x'",
    "no message": "bytes.fromhex('6f766e31') + (3).to_bytes(8, 'little') + b'xyz'",
    "too long": "bytes.fromhex('6f766e31') + bytes([255] * 8) + b'xyz'",
}


@pytest.mark.parametrize("junk", JUNK)
def test_a_process_that_talks_nonsense_is_dead_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, junk: str
) -> None:
    program = tmp_path / "nonsense.py"
    lingers = "" if junk == "torn" else "; time.sleep(600)"
    program.write_text(
        f"import sys, time; sys.stdout.buffer.write({JUNK[junk]}); sys.stdout.flush(){lingers}"
    )
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **named: real([sys.executable, str(program)], **named))
    worker = local_process(tmp_path)
    worker.load(PLAN)
    why = death(worker)
    assert ("cannot be read" in why) == (junk != "torn")
    assert "exit code 0" in why or junk != "torn"
    worker.close(at_once=True)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (b"what is this?", b"begins no message of this program"),
        (bytes.fromhex("6f766e31") + bytes([255] * 8) + b"xyz", b"cannot be read"),
    ],
)
def test_a_process_that_is_told_nonsense_ends_and_logs_it(
    monkeypatch: pytest.MonkeyPatch, told: bytes, words: bytes
) -> None:
    script(monkeypatch)
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.run.worker_main"],
        input=told,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stdout == b""


def test_a_message_of_the_wrong_direction_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch)
    told = io.BytesIO()
    write_message(told, Says("hello"))
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.run.worker_main"],
        input=told.getvalue(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert b"no message of this program" in done.stderr


def test_the_last_words_are_heard(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch)
    monkeypatch.setattr(
        "pipeline.testing.scripted_backend.ScriptedBackend.store_facts",
        lambda self, *, close=False: {"closed": close},
    )
    worker = start()
    worker.load(PLAN)
    heard(worker, say(Loaded))
    worker.held.hear(StoreFacts({"closed": "not yet"}))
    worker.close()
    assert worker.held.store_facts in ({"closed": True}, {})  # another process has its own backend
