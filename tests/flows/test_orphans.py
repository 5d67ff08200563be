"""Flow runs that nobody works on any more are ended in the server, and no others: not those of another
machine, of another serving process that lives, or of an engine that does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from flows.claims import Claims, claiming, living_engines
from flows.orphans import look_after_orphans
from tests.flows.serving import Server, wait_for


@pytest.fixture
def home(server: Server, tmp_path: Path) -> Iterator[Path]:
    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: tmp_path}):
        yield tmp_path


def a_run(server: Server, state: str) -> UUID:
    """A flow run of which the server knows that state, and a task run in it."""
    flow = server.ask("flows/", name="label")
    run = server.ask("flow_runs/", flow_id=flow["id"], state={"type": state})
    server.ask(
        "task_runs/",
        flow_run_id=run["id"],
        task_key="night",
        dynamic_key=str(uuid4()),
        state={"type": "RUNNING"},
    )
    return UUID(run["id"])


def left_by_the_dead(*runs: UUID) -> Path:
    """Claims to runs whose serving process is gone."""
    with claiming() as claims:
        for run in runs:
            claims.take(run)
        return claims._folder


@contextmanager
def an_engine_of(run: UUID) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks as Prefect's engine does when it executes ``run``."""
    environment = {**os.environ, "PREFECT__FLOW_RUN_ID": str(run)}
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(300)", "prefect.engine"], env=environment
    ) as process:
        try:
            wait_for(lambda: run in living_engines())
            yield process
        finally:
            process.kill()


def state(server: Server, run: UUID) -> str:
    return server.state(str(run))[0]


@contextmanager
def looked_again() -> Iterator[Claims]:
    with claiming() as claims:
        look_after_orphans(claims)
        yield claims


def test_a_run_whose_processes_are_gone_is_ended(server: Server, home: Path) -> None:
    runs = [a_run(server, state) for state in ("RUNNING", "PENDING", "CANCELLING", "SCHEDULED", "COMPLETED")]
    folder = left_by_the_dead(*runs)
    with looked_again() as claims:
        assert [state(server, run) for run in runs] == [
            "CRASHED",
            "CRASHED",
            "CANCELLED",
            "SCHEDULED",
            "COMPLETED",
        ]
        told = server.flow_run(str(runs[0]))["state"]["message"]
        assert "start it again and it goes on" in told
        tasks = server.ask("task_runs/filter", flow_runs={"id": {"any_": [str(runs[0]), str(runs[2])]}})
        assert {task["state"]["type"] for task in tasks} == {"CRASHED", "CANCELLED"}
        look_after_orphans(claims)
        assert not folder.exists()


def test_a_run_that_lives_elsewhere_is_left_alone(server: Server, home: Path) -> None:
    run = a_run(server, "RUNNING")
    folder = left_by_the_dead(run)
    folder.parent.rename(folder.parent.with_name("another-machine"))  # a home that machines share
    unclaimed = a_run(server, "RUNNING")
    with looked_again():
        assert state(server, run) == state(server, unclaimed) == "RUNNING"


def test_a_run_of_a_serving_process_that_lives_is_left_alone(server: Server, home: Path) -> None:
    run, lost = a_run(server, "PENDING"), a_run(server, "RUNNING")
    with claiming() as other:
        other.take(run)  # its engine is not there yet
        other.take(lost)
        other.let_go(lost)  # another machine was faster
        with looked_again():
            assert state(server, run) == "PENDING"
    with looked_again():
        assert (state(server, run), state(server, lost)) == ("CRASHED", "RUNNING")


def test_a_run_that_has_outlived_its_serving_process_can_be_cancelled(server: Server, home: Path) -> None:
    run = a_run(server, "RUNNING")
    left_by_the_dead(run)
    with an_engine_of(run) as engine, looked_again() as claims:
        assert state(server, run) == "RUNNING"
        server.cancel(str(run))
        look_after_orphans(claims)
        assert engine.wait(30) != 0
        look_after_orphans(claims)
        assert state(server, run) == "CANCELLED"


def test_a_server_that_does_not_know_the_run_costs_no_claim(server: Server, home: Path) -> None:
    folder = left_by_the_dead(uuid4())
    with looked_again():
        assert len(list(folder.iterdir())) == 2  # the claim and the lock
