"""The pretended clock: who measures without waiting measures launches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.pretend_card.named_cards import CARDS

Cards = Callable[..., None]
_SIZE = 64 << 20


@pytest.fixture(autouse=True)
def _rtx4060(cards: Cards) -> None:
    cards("rtx4060", dry="1")
    torch.cuda.synchronize()


def _seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def test_a_time_without_a_wait_is_of_launches_alone(card: Any) -> None:
    from tests.pretend_card.clock import Costs, ticking

    values = torch.empty(_SIZE, device="cuda", dtype=torch.uint8)
    needed = 2 * _SIZE / CARDS["rtx4060"].bytes_per_second
    with ticking():
        blind = _seconds_of(lambda: values + 1)
        torch.cuda.synchronize()
        seen = _seconds_of(lambda: (values + 1, torch.cuda.synchronize()))
    assert blind == pytest.approx(Costs().launch / 1e6)
    assert needed < seen < 1.2 * needed


def test_events_take_the_cards_time(card: Any) -> None:
    from tests.pretend_card.clock import ticking

    values = torch.empty(_SIZE, device="cuda", dtype=torch.uint8)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
    with ticking():
        begin.record()
        values + 1
        end.record()
        assert not end.query()
        with pytest.raises(RuntimeError):
            begin.elapsed_time(end)
        end.synchronize()
        assert end.query()
        taken = begin.elapsed_time(end) / 1000
    assert taken == pytest.approx(2 * _SIZE / CARDS["rtx4060"].bytes_per_second, rel=0.1)


def test_copies_and_kernels_overlap_on_two_streams(card: Any) -> None:
    from tests.pretend_card.clock import ticking

    host = torch.empty(_SIZE, dtype=torch.uint8, pin_memory=True)
    near, values = (torch.empty(_SIZE, device="cuda", dtype=torch.uint8) for _ in "nv")
    side, link = torch.cuda.Stream(), _SIZE / CARDS["rtx4060"].link_bytes_per_second
    torch.cuda.synchronize()

    def both() -> None:
        with torch.cuda.stream(side):
            near.copy_(host, non_blocking=True)
        for _ in range(5):
            values.add_(1)
        torch.cuda.synchronize()

    with ticking():
        alone = _seconds_of(lambda: near.copy_(host))
        together = _seconds_of(both)
    assert alone == pytest.approx(link, rel=0.05)
    assert together == pytest.approx(link, rel=0.1)


def test_a_replay_costs_less_of_the_host_than_its_launches(card: Any) -> None:
    from tests.pretend_card.clock import Costs, ticking

    values = torch.empty(16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            values.add_(1)
    with ticking():
        assert _seconds_of(graph.replay) == pytest.approx(Costs().replay / 1e6)
        torch.cuda.synchronize()
        whole = _seconds_of(lambda: (graph.replay(), torch.cuda.synchronize()))
    assert whole == pytest.approx((Costs().replay + 100 * Costs().node + Costs().wait) / 1e6, rel=0.05)
