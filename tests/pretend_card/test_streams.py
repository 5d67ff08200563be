"""Work on two streams has no order but what somebody waits for, and copies take until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.fixture
def side(card: Any) -> torch.Stream:
    return torch.cuda.Stream()


@pytest.fixture
def host() -> torch.Tensor:
    return torch.ones(1000, pin_memory=True)


def brought(host: torch.Tensor, side: torch.Stream) -> torch.Tensor:
    """A copy that is under way on ``side``."""
    with torch.cuda.stream(side):
        return host.to("cuda", non_blocking=True)


def by_event(side: Any) -> None:
    torch.cuda.current_stream().wait_event(side.record_event())


WAITS: dict[str, Callable[[Any], object]] = {
    "an event": by_event,
    "the stream": lambda side: torch.cuda.current_stream().wait_stream(side),
    "the host, for the stream": lambda side: side.synchronize(),
    "the host, for an event": lambda side: side.record_event().synchronize(),
    "the host, for the card": lambda _: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_what_was_waited_for_may_be_read(wait: str, host: torch.Tensor, side: torch.Stream) -> None:
    near = brought(host, side)
    WAITS[wait](side)
    assert float((near + 1).sum()) == 2000


def test_what_nobody_waited_for_raises(card: Any, host: torch.Tensor, side: torch.Stream) -> None:
    near = brought(host, side)
    with pytest.raises(RuntimeError, match=r"RACE.* reads what stream .* has written"):
        near + 1
    (race,) = card.races()
    assert "test_streams.py" in race  # the stack that did it
    card.forget_races()


def test_an_event_from_before_the_copy_is_no_wait(card: Any, host: torch.Tensor, side: Any) -> None:
    event = side.record_event()
    near = brought(host, side)
    torch.cuda.current_stream().wait_event(event)
    with pytest.raises(RuntimeError, match="RACE"):
        near + 1
    card.forget_races()


def test_writing_over_what_another_stream_still_reads_raises(
    card: Any, host: torch.Tensor, side: Any
) -> None:
    values = torch.zeros(1000, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        values.sum()
    with pytest.raises(RuntimeError, match=r"RACE.*may still be reading"):
        values.zero_()
    card.forget_races()


def test_memory_that_comes_back_while_another_stream_uses_it_is_a_race(card: Any, side: Any) -> None:
    """What ``record_stream`` is for: the allocator gives the block away again as soon as the tensor goes."""
    lost = torch.zeros(1000, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        lost.sum()
    del lost
    with pytest.raises(RuntimeError, match="RACE"):
        torch.empty(1000, device="cuda").zero_()
    card.forget_races()
    torch.cuda.synchronize()
    kept = torch.zeros(1000, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        kept.sum()
    kept.record_stream(side)
    del kept
    torch.empty(1000, device="cuda").zero_()


def test_pinned_memory_holds_garbage_until_its_copy_was_waited_for(card: Any) -> None:
    near = torch.ones(8, device="cuda")
    back = near.to("cpu", non_blocking=True)
    assert back.is_pinned()
    assert torch.isnan(back).all()
    torch.cuda.synchronize()
    assert back.sum() == 8


def test_pinned_memory_that_changes_under_its_copy_is_a_race(
    card: Any, host: torch.Tensor, side: torch.Stream
) -> None:
    near = brought(host, side)
    host.zero_()
    side.synchronize()
    assert any("changed before its copy" in race for race in card.races())
    card.forget_races()
    del near


def test_a_strict_card_raises_and_another_one_notes(
    cards: Callable[..., None], card: Any, host: torch.Tensor, side: torch.Stream
) -> None:
    cards("8GiB", strict="0")
    brought(host, side) + 1
    assert len(card.races()) == 1
    card.forget_races()


def test_the_generic_streams_are_the_same(card: Any) -> None:
    stream = torch.Stream(device="cuda")
    with stream:
        values = torch.ones(3, device="cuda")
    torch.cuda.default_stream("cuda").wait_stream(stream)
    assert values.sum().item() == 3
    torch.accelerator.synchronize()
