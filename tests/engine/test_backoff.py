"""Backing off: half as many, limits that are remembered, a ladder whose rungs are not tried again in vain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.backoff import Ladder, RowLimits, Rung, halved

LADDER = [Rung("as planned", 100), Rung("smaller", 50), Rung("smallest", 10)]


def test_half_of_what_ran_down_to_the_least() -> None:
    assert [halved(8, running) for running in (8, 20, 5, 3, 1, 0)] == [4, 4, 2, 1, 1, 1]
    assert [halved(4096, 4096, 1024), halved(2048, 2048, 1024), halved(1024, 1024, 1024)] == [
        2048,
        1024,
        1024,
    ]


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 64))
def test_halving_ends_at_the_least(allowed: int, running: int, least: int) -> None:
    steps = 0
    while (smaller := halved(allowed, running, least)) < allowed:
        assert smaller <= max(least, running // 2)
        allowed, running, steps = smaller, smaller, steps + 1
    assert allowed <= least
    assert steps <= 20


def test_limits_remember_the_size() -> None:
    limits = RowLimits()
    assert limits.rows(1000) is None
    limits.failed(1000, 9)
    assert [limits.rows(columns) for columns in (100, 500, 1000, 1001, 2000, 9999)] == [40, 8, 4, 3, 2, 1]
    limits.failed(2000, 1)
    limits.failed(3000, 7)
    assert [limits.rows(columns) for columns in (500, 1000, 2000)] == [4, 2, 1]


def test_a_ladder_is_walked_in_order_and_what_fails_on_the_way_counts() -> None:
    ladder = Ladder(LADDER)
    tried = []
    for rung in ladder.below(64):
        tried.append(rung.name)
        if rung.way * 2 > 100:
            ladder.failed(rung, 64)
        else:
            break
    assert tried == ["as planned", "smaller"]
    assert [rung.name for rung in ladder.below(64)] == ["smaller", "smallest"]
    assert [rung.name for rung in ladder.below(1000)] == ["smaller", "smallest"]
    assert [rung.name for rung in ladder.below(63)] == ["as planned", "smaller", "smallest"]


@given(st.lists(st.tuples(st.sampled_from(LADDER), st.integers(1, 50))), st.integers(1, 50))
def test_a_rung_is_tried_unless_as_small_a_piece_failed_there(
    failures: list[tuple[Rung[int], int]], size: int
) -> None:
    ladder = Ladder(LADDER)
    for rung, failed in failures:
        ladder.failed(rung, failed)
    expected = [
        rung for rung in LADDER if not any(other == rung and failed <= size for other, failed in failures)
    ]
    assert list(ladder.below(size)) == expected
