"""Documents that take the worker down: found, retried apart, quarantined; all others are done; the run ends
by itself.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.nights import TASKS, ANight, documents, no_process_left

CLEAN = documents(40, longest=6)


def poisoned(**texts: str) -> list[dict[str, object]]:
    """The clean documents with one more for each keyword, spread among them."""
    rows = [dict(row) for row in CLEAN]
    for number, (name, text) in enumerate(texts.items()):
        rows.insert(5 + 9 * number, {"id": name, "text": f"A document with {text} in it."})
    return rows


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    night = ANight(tmp_path_factory.mktemp("clean"), CLEAN)
    assert night.run().returncode == 0
    return night.export()


def check(night: ANight, clean: list[dict[str, object]], expected: dict[str, str]) -> list[dict[str, object]]:
    done = night.run()
    assert done.returncode == 3, done.stderr
    rows = night.export()
    assert [row for row in rows if row["id"] not in expected] == clean
    for row in rows:
        if row["id"] in expected:
            assert row["topic_status"] == row["summary_status"] == expected[str(row["id"])], row
            assert row["topic"] is None
            assert row["topic_error"]
    counts = night.status()
    assert counts["complete"]
    for states in counts["tasks"].values():
        assert sum(states.values()) == counts["documents"] == len(rows)
    assert no_process_left(night.folder)
    return rows


@pytest.mark.parametrize("fault", ["segfault", "kill", "exit"])
def test_a_document_that_kills_the_worker_is_quarantined(
    tmp_path: Path, clean: list[dict[str, object]], fault: str
) -> None:
    night = ANight(tmp_path, poisoned(bad="POISON"), script={"faults": [{"text": "POISON", "do": fault}]})
    rows = check(night, clean, {"bad": "quarantined"})
    error = next(str(row["topic_error"]) for row in rows if row["id"] == "bad")
    died = re.search(r"died (\d+) times with this document, the last time alone", error)
    assert died is not None, error
    # max_attempts; more when it was a suspect beside others so often before it was looked at alone
    assert int(died[1]) >= 3


def test_a_document_that_hangs_the_worker_is_quarantined(
    tmp_path: Path, clean: list[dict[str, object]]
) -> None:
    night = ANight(
        tmp_path,
        poisoned(bad="POISON"),
        script={"faults": [{"text": "POISON", "do": "hang"}]},
        extra={
            "engine": {"batch_rows": 4, "stall_seconds": 1.5},
            "run": {"directory": str(tmp_path / "run"), "max_attempts": 2},
        },
    )
    check(night, clean, {"bad": "quarantined"})


def test_failures_of_all_kinds_beside_each_other(tmp_path: Path, clean: list[dict[str, object]]) -> None:
    night = ANight(
        tmp_path,
        poisoned(crash="POISON", memory="HUGE", raises="ODD"),
        script={
            "faults": [
                {"text": "POISON", "do": "segfault"},
                {"text": "HUGE", "do": "oom"},
                {"text": "ODD", "do": "raise"},
            ]
        },
    )
    rows = check(night, clean, {"crash": "quarantined", "memory": "failed", "raises": "failed"})
    errors = {str(row["id"]): str(row["topic_error"]) for row in rows if row["topic_error"]}
    assert "out_of_memory" in errors["memory"]
    assert "model_error" in errors["raises"]


def counted(night: ANight, outcome: str) -> int:
    with closing(sqlite3.connect(night.directory / "ledger.sqlite")) as ledger:
        return int(
            ledger.execute("SELECT count(*) FROM attempts WHERE outcome = ?", (outcome,)).fetchone()[0]
        )


def test_a_document_that_kills_the_runner_is_quarantined_and_the_night_ends(
    tmp_path: Path, clean: list[dict[str, object]]
) -> None:
    night = ANight(
        tmp_path, poisoned(bad="POISON"), script={"runner_faults": [{"text": "POISON", "do": "segfault"}]}
    )
    codes = []
    while not codes or codes[-1] < 0:
        codes.append(night.run().returncode)
        assert len(codes) < 10
    assert codes[:-1] == [-signal.SIGSEGV] * (len(codes) - 1)
    assert 3 <= len(codes) - 1 <= 6  # max_attempts for each of the two tasks
    assert counted(night, "runner_died") == len(codes) - 1
    rows = check(night, clean, {"bad": "quarantined"})
    error = next(str(row["topic_error"]) for row in rows if row["id"] == "bad")
    assert re.search(r"runner_died.*the runner itself died 3 times.*overnight reproduce ", error)


@pytest.mark.full
def test_a_document_that_kills_the_runner_goes_last(tmp_path: Path, clean: list[dict[str, object]]) -> None:
    night = ANight(
        tmp_path, poisoned(bad="POISON"), script={"runner_faults": [{"text": "POISON", "do": "kill"}]}
    )
    for _ in range(2):
        assert night.run().returncode == -signal.SIGKILL
    counts = night.status()["tasks"]
    assert counts["topic"]["done"] == len(CLEAN)  # the second start did all others first


def test_a_document_that_keeps_the_runner_busy_fails_and_the_night_goes_on(
    tmp_path: Path, clean: list[dict[str, object]]
) -> None:
    night = ANight(
        tmp_path,
        poisoned(bad="POISON"),
        script={"runner_faults": [{"text": "POISON", "do": "hang"}]},
        extra={"engine": {"batch_rows": 4, "stall_seconds": 3}},
    )
    rows = check(night, clean, {"bad": "failed"})
    assert "stalled" in next(str(row["topic_error"]) for row in rows if row["id"] == "bad")


@pytest.mark.full
def test_a_runner_that_cannot_be_interrupted_ends_itself_and_the_document_is_found(
    tmp_path: Path, clean: list[dict[str, object]]
) -> None:
    night = ANight(
        tmp_path,
        poisoned(bad="POISON"),
        tasks=TASKS[:1],
        script={"runner_faults": [{"text": "POISON", "do": "stick"}]},
        extra={
            "engine": {"batch_rows": 4, "stall_seconds": 2},
            "run": {"directory": str(tmp_path / "run"), "max_attempts": 2},
        },
    )
    assert [night.run().returncode for _ in range(3)] == [75, 75, 3]
    rows = night.export()
    assert all(row["topic_status"] == "done" for row in rows if row["id"] != "bad")
    assert next(row for row in rows if row["id"] == "bad")["topic_status"] == "quarantined"


def test_the_command_that_is_told_shows_the_failure_again(
    tmp_path: Path, clean: list[dict[str, object]]
) -> None:
    night = ANight(
        tmp_path,
        poisoned(**{"it's bad": "POISON"}),
        script={"faults": [{"text": "POISON", "do": "segfault"}]},
    )
    rows = check(night, clean, {"it's bad": "quarantined"})
    error = next(str(row["topic_error"]) for row in rows if row["id"] == "it's bad")
    told = shlex.split(error[error.index("overnight reproduce") :])
    again = night.command(*told[1:], "--json")
    assert again.returncode == 3, again.stderr
    facts = json.loads(again.stdout)
    assert facts["status"]["documents"] == 1
    assert facts["status"]["tasks"]["topic"]["quarantined"] == 1
    assert Path(facts["run_directory"]).is_relative_to(night.directory)
    assert night.export() == rows  # the run itself is as it was


def test_a_worker_that_dies_once_costs_nothing(tmp_path: Path, clean: list[dict[str, object]]) -> None:
    fault = {"text": "ferry", "do": "kill", "times": 2, "counter": str(tmp_path / "counter")}
    night = ANight(tmp_path, CLEAN, script={"faults": [fault]})
    done = night.run()
    assert done.returncode == 0, done.stderr
    assert night.export() == clean


def test_retry_tries_quarantined_documents_again(tmp_path: Path, clean: list[dict[str, object]]) -> None:
    night = ANight(
        tmp_path, poisoned(bad="POISON"), script={"faults": [{"text": "POISON", "do": "segfault"}]}
    )
    check(night, clean, {"bad": "quarantined"})
    night.script = {}
    assert night.run().returncode == 3  # nothing is tried again by itself
    assert night.command("retry", str(night.directory)).returncode == 0
    assert night.run().returncode == 0
    assert next(row for row in night.export() if row["id"] == "bad")["topic_status"] == "done"
