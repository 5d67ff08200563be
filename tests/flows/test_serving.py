"""The deployments on a real server: the printed command, kill -9, cancelling, a lost server, and the names of
the endings.
"""

from __future__ import annotations

import csv
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flows.serving import ROOT, Server, Serving, a_project_of_its_own, wait_for
from tests.nights import ANight, documents, no_process_left

pytestmark = pytest.mark.timeout(400)
_LEAP_DAYS = "30 21 29 2 *"  # not while the tests run


def a_night(folder: Path, count: int = 40, seconds: float = 0.1, **script: Any) -> ANight:
    return ANight(folder, documents(count, longest=6), script={"seconds": seconds, **script})


def answers(night: ANight, task: str) -> int:
    """Documents with an answer of ``task`` in the export; every document is in it once."""
    rows = night.export()
    assert [row["id"] for row in rows] == [row["id"] for row in night.rows]
    return sum(row[f"{task}_status"] == "done" for row in rows)


def test_kill_everything_and_start_again(server: Server, tmp_path: Path) -> None:
    """The server, the serving process, the run and its worker, by SIGKILL. What is shown then is true, and
    the printed command goes on.
    """
    night = a_night(tmp_path)
    theirs = a_project_of_its_own(tmp_path / "theirs")
    with Serving(server, night, ("--cron", _LEAP_DAYS, "--timezone", "Europe/Berlin"), cwd=theirs) as serving:
        _form_and_schedule(server, night)
        _bounds(server)
        first = serving.ask_for("label")
        serving.wait_done("topic", 4)
        server.kill()
    assert no_process_left(night.directory)
    server.start()
    assert server.state(first)[0] == "RUNNING"
    with Serving(server, night, cwd=theirs) as serving:
        assert [command[-1] for command in serving.printed_commands()] == [
            "summarize/overnight",
            "label/overnight",
        ]
        assert server.state(first) == ("CRASHED", "Crashed")
        assert server.unfinished() == []
        left = server.artifacts(first)["label-progress"]["description"]
        assert re.fullmatch(r"label: .*; then its processes were gone", left)
        assert "left" not in left
        second = serving.start("label")
        assert server.wait_ended(second) == ("COMPLETED", "Completed"), serving.output
        assert "Traceback" not in serving.output
    assert answers(night, "topic") == 40
    assert re.fullmatch(r"config \d{4}-\d\d-\d\d \d\d:\d\d", server.flow_run(second)["name"])
    shown = server.artifacts(second)
    assert float(shown["label-progress"]["data"]) == 100
    assert re.fullmatch(r"label: (\d+) of \1 done", shown["label-progress"]["description"])
    assert "## Task topic" in shown["label-report"]["data"]
    assert "summary" not in shown["label-report"]["data"]


def _rows(table: Path) -> list[str]:
    """What a run has left of each document in the table of its configuration."""
    with table.open(encoding="utf-8", newline="") as stream:
        return [f"{row['id']} {row['topic_status']}" for row in csv.DictReader(stream)]


def _form_and_schedule(server: Server, night: ANight) -> None:
    served = {deployment["entrypoint"]: deployment for deployment in server.ask("deployments/filter")}
    assert set(served) == {"flows.kinds.summarize", "flows.kinds.label"}
    for deployment in served.values():
        properties = deployment["parameter_openapi_schema"]["properties"]
        assert list(properties) == ["config", "overrides", "limit"]
        assert all(len(field["description"]) > 20 for field in properties.values())
        assert deployment["parameters"] == {"config": str(night.config)}
        assert deployment["concurrency_limit"] is None
        schedule = deployment["schedules"][0]["schedule"]
        assert (schedule["cron"], schedule["timezone"]) == (_LEAP_DAYS, "Europe/Berlin")


def _bounds(server: Server) -> None:
    found = httpx.get(f"{server.api}/deployments/name/label/overnight", timeout=30).json()
    asked = {"parameters": {"limit": 0}}
    refused = httpx.post(f"{server.api}/deployments/{found['id']}/create_flow_run", json=asked, timeout=30)
    assert refused.is_client_error
    assert "minimum" in refused.text


@pytest.mark.full
def test_cancelling_stops_the_work_and_the_same_deployment_goes_on(server: Server, tmp_path: Path) -> None:
    night = a_night(tmp_path, seconds=0.2)
    with Serving(server, night) as serving:
        first = serving.ask_for("label")
        serving.wait_done("topic", 2)
        server.cancel(first)
        started = time.monotonic()
        assert server.wait_ended(first, 20) == ("CANCELLED", "Cancelled"), serving.output
        assert time.monotonic() - started < 15
        assert no_process_left(night.directory)
        assert "Traceback" not in serving.output
        assert night.status()["tasks"]["topic"]["running"] == 0
        assert server.wait_ended(serving.ask_for("label")) == ("COMPLETED", "Completed"), serving.output
    assert answers(night, "topic") == 40


@pytest.mark.full
def test_second_run_of_a_kind_ends_as_already_running_and_the_other_kind_waits(
    server: Server, tmp_path: Path
) -> None:
    night = a_night(tmp_path, count=30, seconds=1.5)
    with Serving(server, night) as serving:
        first = serving.ask_for("label")
        serving.wait_done("topic", 1)
        again, other = serving.ask_for("label"), serving.ask_for("summarize")
        assert server.wait_ended(again) == ("COMPLETED", "AlreadyRunning"), serving.output
        assert server.state(first)[0] == "RUNNING"
        assert server.wait_ended(first) == ("COMPLETED", "Completed")
        assert server.wait_ended(other, 180) == ("COMPLETED", "Completed"), serving.output
        assert "waiting for the label run" in serving.output
    assert answers(night, "topic") == answers(night, "summary") == 30


@pytest.mark.full
def test_a_run_by_hand_that_holds_the_directory_is_already_running(server: Server, tmp_path: Path) -> None:
    night = a_night(tmp_path, count=60, seconds=1.5)  # longer than serving takes to begin on a busy machine
    by_hand = night.start("run", str(night.config), "--quiet")
    try:
        with Serving(server, night) as serving:
            serving.wait_done("topic", 1)
            run = serving.ask_for("label")
            assert server.wait_ended(run) == ("COMPLETED", "AlreadyRunning"), serving.output
            assert str(by_hand.pid) in server.flow_run(run)["state"]["message"]
    finally:
        by_hand.terminate()
        by_hand.communicate(timeout=30)


@pytest.mark.full
def test_losing_the_server_stops_nothing(tmp_path: Path) -> None:
    home = tmp_path / "prefect"
    home.mkdir()
    night = a_night(tmp_path / "night", count=100, seconds=0.5)
    with Server(home) as server, Serving(server, night) as serving:
        run = serving.ask_for("label")
        serving.wait_done("topic", 4)
        server.kill()
        serving.wait_done("topic", 100)  # 50 s, longer than Prefect's own patience of three polls
        assert serving.process.poll() is None
        server.start()
        assert server.wait_ended(run, 180) == ("COMPLETED", "Completed"), serving.output
        later = serving.ask_for("summarize")  # work is still taken, and can still be cancelled
        serving.wait_done("summary", 1)
        server.cancel(later)
        assert server.wait_ended(later, 30) == ("CANCELLED", "Cancelled"), serving.output
    assert answers(night, "topic") == 100


@pytest.mark.full
def test_a_run_outlives_its_serving_process(server: Server, tmp_path: Path) -> None:
    night = a_night(tmp_path, count=100, seconds=0.5)
    with Serving(server, night) as serving:
        run = serving.ask_for("label")
        serving.die_after("topic", 2)
        with Serving(server, night):  # which leaves it alone
            assert server.wait_ended(run, 240) == ("COMPLETED", "Completed")
    assert answers(night, "topic") == 100


@pytest.mark.full
def test_a_run_that_has_outlived_its_serving_process_is_cancelled(server: Server, tmp_path: Path) -> None:
    night = a_night(tmp_path, count=400, seconds=0.3)
    with Serving(server, night) as serving:
        run = serving.ask_for("label")
        serving.die_after("topic", 2)
        with Serving(server, night):
            server.cancel(run)
            assert server.wait_ended(run, 90) == ("CANCELLED", "Cancelled")
        assert no_process_left(night.directory)
        assert server.unfinished() == []


@pytest.mark.full
def test_another_serving_process_leaves_what_runs_alone(server: Server, tmp_path: Path) -> None:
    night = a_night(tmp_path, seconds=0.3)
    with Serving(server, night) as serving:
        run = serving.ask_for("label")
        with Serving(server, a_night(tmp_path / "other")):
            serving.wait_done("topic", 2)
            assert server.state(run)[0] == "RUNNING"
        assert server.wait_ended(run) == ("COMPLETED", "Completed"), serving.output


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ending_the_serving_process_stops_cleanly(server: Server, tmp_path: Path, number: int) -> None:
    night = a_night(tmp_path, seconds=0.3)
    with Serving(server, night) as serving:
        run = serving.ask_for("label")
        serving.wait_done("topic", 2)
        if number == signal.SIGINT:
            os.killpg(serving.process.pid, number)  # as a terminal's Ctrl-C
        else:
            serving.process.send_signal(number)
        assert serving.process.wait(60) == 0
        assert no_process_left(night.directory)
        assert night.status()["tasks"]["topic"]["running"] == 0
        assert server.wait_ended(run, 30)[1] in ("StoppedEarly", "Cancelled"), serving.output
        assert "Traceback" not in serving.output
    assert all(deployment["paused"] for deployment in server.ask("deployments/filter"))
    with Serving(server, night) as serving:
        assert not any(deployment["paused"] for deployment in server.ask("deployments/filter"))
        assert server.wait_ended(serving.ask_for("label")) == ("COMPLETED", "Completed"), serving.output
    assert answers(night, "topic") == 40


@pytest.mark.full
def test_names_of_the_endings(server: Server, tmp_path: Path) -> None:
    script = {"seconds": 0, "faults": [{"text": "POISON", "do": "raise"}]}
    table = tmp_path / "tables" / "night.csv"
    night = ANight(tmp_path, documents(6, longest=6), script=script, extra={"run": {"output": str(table)}})
    night.rows[2]["text"] += " POISON"
    night.write_source(night.rows)
    with Serving(server, night, cwd=tmp_path, home="prefect home") as serving:
        limited = serving.ask_for("label", limit=2)
        assert server.wait_ended(limited) == ("COMPLETED", "LimitReached"), serving.output
        assert _rows(table) == ["d0000 done", "d0001 done"]
        assert f"Table: {table} (2 rows)." in server.flow_run(limited)["state"]["message"]
        failed = serving.ask_for("label")
        assert server.wait_ended(failed) == ("COMPLETED", "CompletedWithFailures"), serving.output
        assert "1 failed" in server.flow_run(failed)["state"]["message"]
        assert _rows(table) == [f"d000{n} {'failed' if n == 2 else 'done'}" for n in range(6)]
        mistaken = serving.ask_for("label", overrides=["tasks.topic.labels=[one]"])
        assert server.wait_ended(mistaken) == ("FAILED", "Failed")
        assert "one label leaves nothing to choose" in server.flow_run(mistaken)["state"]["message"]
        assert "Traceback" not in serving.output
        assert serving.process.poll() is None
        assert list((tmp_path / "prefect home" / "overnight").glob("*/*/lock"))
        assert not (ROOT / "prefect home").exists()
    assert answers(night, "topic") == 5


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_twenty_kills_at_random_moments(server: Server, tmp_path: Path) -> None:
    night = a_night(tmp_path, count=60, seconds=0.2)
    for number in range(20):
        with Serving(server, night) as serving:
            serving.ask_for("label")
            time.sleep(3 + number % 5)  # before, while and after the run starts
        assert no_process_left(night.directory)
    with Serving(server, night) as serving:
        assert server.unfinished() == []
        wait_for(lambda: server.wait_ended(serving.ask_for("label")) == ("COMPLETED", "Completed"))
    assert answers(night, "topic") == 60
