"""Fixtures for all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.home import move_in

move_in()  # before anything is imported that looks for a home

import pytest  # noqa: E402  # after the above, as all that follow
from hypothesis import HealthCheck, settings  # noqa: E402

from pipeline.engine.model.demo_model import demo_model  # noqa: E402

_CACHE = Path(os.environ["OVERNIGHT_CACHE"])
_MEASURED = ("speeds", "decoders")
_MOST_PROCESSES = 4  # some tests hold a model in a process of its own
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
# Tests side by side share the cores; threads that spin while they wait would take them from each other. None
# of these imports loads torch.
os.environ.setdefault(
    "OMP_NUM_THREADS", str(max(1, _CORES // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))
)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Machines are shared: how long an example takes says nothing about whether it is right.
settings.register_profile("full", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("full"), max_examples=40)
settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    if _is_full(config):
        settings.load_profile("full")


@pytest.hookimpl(tryfirst=True)  # before the marks choose
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Properties are in both tiers: with few examples in the quick one, with all of them in the full one."""
    for item in items if _is_full(config) else ():
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("full")


def _is_full(config: pytest.Config) -> bool:
    return config.option.markexpr == "full"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores, for many tests wait for processes, servers and time limits; one test at
    a time where times are compared.
    """
    return 0 if config.option.markexpr == "bench" else min(_CORES + 1, _MOST_PROCESSES)


@pytest.fixture(scope="session")
def demo_model_folder() -> Path:
    """The packaged demo model as a plain folder; converted once in a checkout (see ``tests/home.py``)."""
    return demo_model(print)


@pytest.fixture(autouse=True)
def _measured_speeds_are_forgotten() -> Iterator[None]:
    """What a night measures is kept for the next one of its user; a later test is another user."""
    yield
    for name in _MEASURED:
        shutil.rmtree(_CACHE / name, ignore_errors=True)
