"""The display alone: never in the way of a run, silent where there is no flow run, and readable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from prefect.flows import Flow
from prefect.utilities.services import critical_service_loop

from flows.board import Board, at_rest, describe, percent, publish
from flows.kinds import flow_of
from flows.logs import own_errors_as_sentences, warnings_or_prefect
from flows.patience import LOOP, PLACES, outlive_the_server, patient_loop
from flows.serve import deployments, local_timezone
from pipeline.errors import ConfigError, UsageError
from pipeline.records import Progress


def record(
    error: Exception | None, name: str = "prefect.task_runs", level: int = logging.ERROR
) -> logging.LogRecord:
    information = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(
        name, level, "file", 1, "Task run failed with exception: %r", ("x",), information
    )


def test_progress_is_a_line_for_people() -> None:
    assert (
        describe("label", Progress("working", 12, 1, 1060, 310.4, 299))
        == "label: 12 of 1,060 done, 1 failed, 310 tokens/s, 5 min left"
    )
    assert describe("label", Progress("loading", message="loading the model")) == "label: loading the model"
    assert describe("label", Progress("reading")) == "label: reading"


def test_percentage() -> None:
    assert percent(Progress("working", 12, 1, 48)) == 25
    assert percent(Progress("reading")) == 0
    assert percent(Progress("reporting")) == 100


def test_board_outside_a_flow_run_sends_nothing_and_costs_nothing() -> None:
    with Board("label") as board:
        started = time.monotonic()
        for number in range(10_000):
            board(Progress("working", number, 0, 10_000))
        assert time.monotonic() - started < 1
    assert not publish("label", {"topic": "# report"})


def test_a_run_that_has_nothing_new_still_says_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flows.board")
    with Board("label", send_seconds=0.01, log_seconds=0.2) as board:
        board(Progress("working", 12, 1, 60, 310.4, 299))
        time.sleep(1)
    first, *later = caplog.messages
    assert first == "label: 12 of 60 done, 1 failed, 310 tokens/s, 5 min left"
    assert len(later) >= 2
    assert all(line.startswith(f"{first} (nothing new for ") for line in later)


def test_what_has_ended_has_no_rate_and_no_time_left() -> None:
    ended = at_rest(Progress("working", 12, 1, 60, 310.4, 299))
    assert describe("label", ended) == "label: 12 of 60 done, 1 failed"


def test_own_errors_lose_their_traceback_and_faults_keep_it() -> None:
    own, fault = record(ConfigError("there is no such file")), record(ValueError("a bug"))
    assert own_errors_as_sentences(own)
    assert own_errors_as_sentences(fault)
    assert (own.getMessage(), own.exc_info) == ("there is no such file", None)
    assert fault.exc_info is not None
    assert fault.getMessage() == "Task run failed with exception: 'x'"


def test_console_shows_prefect_and_warnings() -> None:
    assert warnings_or_prefect(record(None, "prefect.flow_runs", logging.INFO))
    assert warnings_or_prefect(record(None, "pipeline.run.runner", logging.WARNING))
    assert not warnings_or_prefect(record(None, "pipeline.run.runner", logging.INFO))


@pytest.mark.parametrize("flow", [flow_of("summarize"), flow_of("label")])
def test_form_of_the_flows(flow: Flow[..., object]) -> None:
    schema = flow.parameters
    assert list(schema.properties) == ["config", "overrides", "limit"]
    assert schema.required == []
    assert schema.properties["config"]["default"] == "configs/demo.yaml"
    assert not flow.persist_result
    assert flow.retries == 0


@pytest.mark.parametrize(
    ("cron", "timezone"), [("every night", "UTC"), ("0 25 * * *", "UTC"), ("0 22 * * *", "Berlin")]
)
def test_wrong_schedules_are_sentences(cron: str, timezone: str) -> None:
    with pytest.raises(UsageError, match="is not a"):
        deployments("configs/demo.yaml", cron, timezone)


def test_time_zone_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert local_timezone() == "Europe/Berlin"
    monkeypatch.setenv("TZ", "nonsense")
    assert local_timezone() != "nonsense"


def test_patient_loop_asks_on_where_prefects_own_gives_up() -> None:
    def workload(asked: list[int]) -> Callable[[], Coroutine[Any, Any, None]]:
        async def ask() -> None:
            asked.append(1)
            if len(asked) <= 5:
                raise httpx.ConnectError("All connection attempts failed")
            if len(asked) > 7:
                raise LookupError("enough")

        return ask

    def quiet(*_: object) -> None: ...

    asked: list[int] = []
    with pytest.raises(RuntimeError, match="exceeded error threshold"):
        asyncio.run(critical_service_loop(workload(asked), interval=0, printer=quiet))
    assert len(asked) == 3
    asked.clear()
    with pytest.raises(LookupError):
        asyncio.run(patient_loop(workload(asked), interval=0, printer=quiet))
    assert len(asked) == 8


def test_this_prefect_has_the_loops_that_are_made_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    for place in PLACES:
        module = importlib.import_module(place)
        monkeypatch.setattr(module, LOOP, getattr(module, LOOP))  # restores it afterwards
    outlive_the_server()
    assert all(
        getattr(importlib.import_module(place), LOOP).__module__ == "flows.patience" for place in PLACES
    )
