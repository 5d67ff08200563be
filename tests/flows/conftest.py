"""Prefect for tests: a home of its own, no telemetry, a raised start-up limit; one real server a module."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_home = tempfile.TemporaryDirectory(prefix="prefect-home-", ignore_cleanup_errors=True)
atexit.register(_home.cleanup)
os.environ.update(  # before anything imports Prefect, which reads its settings then
    PREFECT_HOME=_home.name,
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    DO_NOT_TRACK="1",
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="180",
    PREFECT_RUNNER_POLL_FREQUENCY="1",
)
os.environ.pop("PREFECT_API_URL", None)

from tests.flows.serving import Server  # noqa: E402  # after the settings above


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(Path(tmp_path_factory.mktemp("prefect"))) as running:
        yield running
