"""The process that has the cards: a pytest session that has collected this folder and runs what it is told.

    python -m pytest -p tests.pretend_card.card_session --orders FD tests/pretend_card

An order is a line of JSON, ``{"item": node id, "next": node id or null}``; the answer is a line with the
item's serialized reports. The session ends when the other side is gone. See ``card_process.py``.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--orders", type=int, help="file descriptor of the socket that orders come from")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Reports(), "reports of the item that runs")


class _Reports:
    """Keeps what an item reports until it is sent."""

    def __init__(self) -> None:
        self.found: list[pytest.TestReport] = []

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.found.append(report)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run what is ordered instead of everything."""
    items = {item.nodeid: item for item in session.items}
    with socket.socket(fileno=session.config.option.orders) as orders, orders.makefile("rw") as lines:
        for line in lines:
            order = json.loads(line)
            reports = _run(session, items[order["item"]], items.get(order["next"]))
            print(json.dumps(reports), file=lines, flush=True)
    return True


def _run(session: pytest.Session, item: pytest.Item, following: pytest.Item | None) -> list[Any]:
    reports: Any = session.config.pluginmanager.get_plugin("reports of the item that runs")
    reports.found.clear()
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    serialize = session.config.hook.pytest_report_to_serializable
    return [serialize(config=session.config, report=report) for report in reports.found]
