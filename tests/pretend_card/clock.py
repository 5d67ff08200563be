"""A pretended clock: what a launch, a kernel's bytes, a copy and a wait cost, assumed.

Launches keep the host and are queued behind each other on their stream; a kernel keeps its stream as long as
its bytes take; the host goes on until it waits. So a time that is taken without waiting for the card shows
launches alone, here as on a card. It is no measurement: see the costs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from tests.pretend_card.extension import card
from tests.pretend_card.options import Options


@dataclass(frozen=True)
class Costs:
    """Microseconds of the host for a launch, a replay, a wait; of the card for a node; and rates."""

    launch: float = 6.0
    replay: float = 10.0
    node: float = 1.0
    wait: float = 15.0
    card_bytes_per_second: float = 272e9
    link_bytes_per_second: float = 14e9


def configure(options: Options) -> None:
    """Take the rates of the first card; events happen in time if ``PRETEND_CLOCK`` says so."""
    of = options.cards[0]
    set_costs(
        Costs(card_bytes_per_second=of.bytes_per_second, link_bytes_per_second=of.link_bytes_per_second)
    )
    card.run_clock(options.clock)


def set_costs(costs: Costs) -> None:
    """Let the clock go by these."""
    rates = (costs.card_bytes_per_second / 1e6, costs.link_bytes_per_second / 1e6)
    card.set_costs(costs.launch, costs.replay, costs.node, costs.wait, *rates)


def host_seconds() -> float:
    """Where the host is."""
    return float(card.host_time()) / 1e6


def card_seconds(device: int = 0, stream: int = 0) -> float:
    """When all that was given to a stream will be done."""
    return float(card.busy_until(device, stream)) / 1e6


@contextmanager
def ticking() -> Iterator[None]:
    """For the length of a block ``time.perf_counter`` and ``time.monotonic`` tell the host's place on the
    pretended clock, and events happen in its time: what the program measures is what it would measure on such
    a card.
    """
    before = card.run_clock(True)
    try:
        with patch.object(time, "perf_counter", host_seconds), patch.object(time, "monotonic", host_seconds):
            yield
    finally:
        card.run_clock(before)


def work(seconds: float) -> None:
    """The host does something else for so long."""
    card.pass_time(seconds * 1e6)


__all__ = ["Costs", "card_seconds", "configure", "host_seconds", "set_costs", "ticking", "work"]
