"""Prefect for tests: no telemetry, a raised start-up limit; one real server for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.update(  # before anything imports Prefect, which reads its settings then
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    DO_NOT_TRACK="1",
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="180",
    PREFECT_RUNNER_POLL_FREQUENCY="1",
)

from tests.flows.serving import Server  # after the settings above


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(Path(tmp_path_factory.mktemp("prefect"))) as started:
        yield started


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    """The server without a deployment or a run: those of an earlier test are forgotten."""
    yield running
    running.forget()
