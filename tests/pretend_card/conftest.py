"""Tests in this folder run on pretended cards: in a process that has them, unless the session's own does."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.pretend_card.build import CannotBuild, NoCompiler
from tests.pretend_card.card_process import CardProcess, Ended
from tests.pretend_card.options import VARIABLE, options_of

FOLDER = Path(__file__).parent
REAL = "CARD_IS_REAL"  # tests that need no more than a card run on this machine's own
REQUIRED = "PRETEND_REQUIRED"  # set where a compiler has to be there: its lack is a failure
_processes: list[CardProcess] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Have the process with the cards run it."""
    if _is_here() or not _on_card(item) or _why_there_is_none():
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item, nextitem if nextitem and _on_card(nextitem) else None):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item) -> bool | None:
    """The process with the cards has the limits; one clock for both would stop the wrong one."""
    return None if _is_here() or not _on_card(item) else True


def pytest_unconfigure() -> None:
    while _processes:
        _processes.pop().close()


def _is_here() -> bool:
    """Whether this process itself has a card."""
    return VARIABLE in os.environ or REAL in os.environ


def _on_card(item: pytest.Item) -> bool:
    """Whether it is of this folder: pytest asks of all, and elsewhere a card may be one of a data set."""
    return FOLDER in item.path.parents and "card" in getattr(item, "fixturenames", ())


@cache
def _why_there_is_none() -> CannotBuild | None:
    try:
        _processes.append(CardProcess())
    except CannotBuild as error:
        return error
    return None


def _reports(item: pytest.Item, following: pytest.Item | None) -> list[Any]:
    if not _processes:
        _processes.append(CardProcess())
    try:
        found = _processes[-1].run(item.nodeid, following.nodeid if following else None, _limit_seconds(item))
    except Ended as error:
        _processes.pop().close()
        return [_failure(item, str(error))]
    read = item.config.hook.pytest_report_from_serializable
    return [read(config=item.config, data=each) for each in found]


def _limit_seconds(item: pytest.Item) -> float:
    """How long it may take, as pytest-timeout reads it."""
    mark = item.get_closest_marker("timeout")
    told = (*mark.args, *mark.kwargs.values()) if mark else (item.config.getini("timeout"),)
    return float(told[0])


def _failure(item: pytest.Item, text: str) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")


@pytest.fixture(autouse=True)
def card() -> Iterator[Any]:
    """The device, with nothing counted yet; a test that leaves a race behind has failed."""
    if REAL in os.environ:
        yield None
        return
    if VARIABLE not in os.environ:
        _no_card()
    import torch  # noqa: F401  # the device comes with it

    from tests.pretend_card.extension import card as device

    _begin(device)
    yield device
    device.fail_after(0, "")
    assert device.races() == []


def _no_card() -> NoReturn:
    """Skip where there is no compiler; fail where there has to be one, or where it refused the sources."""
    why = _why_there_is_none()
    if REQUIRED in os.environ or not isinstance(why, NoCompiler):
        pytest.fail(str(why))
    pytest.skip(str(why))


def _begin(device: Any) -> None:
    import torch

    from tests.pretend_card.torch_cuda import configure

    configure(options_of())
    torch.cuda.init()  # so that no test depends on who has been here before
    device.set_device(0)
    device.clear_workspaces()
    if torch.cuda.memory_allocated():
        gc.collect()  # what an earlier test left in cycles is no part of this one's card
    device.empty_cache()
    for index in range(len(options_of().cards)):
        device.reset_peak(index)
    device.reset_counts()
    device.forget_races()


@pytest.fixture
def cards(card: Any) -> Iterator[Callable[..., None]]:
    """Other cards for a test: ``cards("2x8GiB", capability="7.5", foreign="1GiB", dry="1")``."""
    if card is None:
        pytest.skip("a real card is as large as it is")
    from tests.pretend_card.torch_cuda import configure

    def become(size: str, **options: str) -> None:
        asked = {f"PRETEND_{name.upper()}": value for name, value in options.items()}
        configure(options_of({VARIABLE: size, **asked}))

    yield become
    configure(options_of())
