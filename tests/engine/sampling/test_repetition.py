"""Loops are found where they stand, one period is kept, and nothing else is taken for a loop."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.engine.sampling.repetition import (
    MAX_PERIOD_TOKENS,
    MIN_COVER_TOKENS,
    MIN_REPEATS,
    RepetitionDetector,
)


def first_loop(tokens: list[int]) -> tuple[int, int] | None:
    """(tokens seen, tokens to keep) when the detector first speaks."""
    detector = RepetitionDetector()
    for seen, token in enumerate(tokens, start=1):
        kept = detector.push(token)
        if kept is not None:
            return seen, kept
    return None


def loops_at_end(tokens: list[int]) -> bool:
    """The definition, word for word and slowly: a period that stands at the end often enough and covers
    enough.
    """
    for period in range(1, MAX_PERIOD_TOKENS + 1):
        covered = max(MIN_COVER_TOKENS, MIN_REPEATS * period)
        tail = tokens[-covered:]
        if len(tail) == covered and all(
            tail[index] == tail[index - period] for index in range(period, covered)
        ):
            return True
    return False


@given(
    st.lists(st.integers(0, 3), max_size=30),
    st.lists(st.integers(0, 3), min_size=1, max_size=14),
    st.integers(1, 80),
)
def test_agrees_with_the_definition(head: list[int], period: list[int], repeats: int) -> None:
    tokens = (head + period * repeats)[:200]
    found = first_loop(tokens)
    slow = next((seen for seen in range(1, len(tokens) + 1) if loops_at_end(tokens[:seen])), None)
    assert (found[0] if found else None) == slow


@given(
    st.lists(st.integers(100, 200), max_size=40),
    st.lists(st.integers(0, 50), min_size=1, max_size=MAX_PERIOD_TOKENS, unique=True),
)
def test_keeps_head_and_one_period(head: list[int], period: list[int]) -> None:
    repeats = MIN_COVER_TOKENS // len(period) + MIN_REPEATS + 1
    assume(first_loop(head) is None)
    tokens = head + period * repeats
    found = first_loop(tokens)
    assert found is not None
    seen, kept = found
    assert tokens[:kept] == head + period
    assert seen == len(head) + max(MIN_COVER_TOKENS, MIN_REPEATS * len(period))


@given(st.permutations(list(range(60))), st.integers(1, 3))
def test_a_text_said_three_times_is_no_loop(text: list[int], times: int) -> None:
    assert first_loop(list(text) * times) is None


def test_forty_dashes_are_no_loop() -> None:
    assert first_loop([9] * 40 + list(range(100, 300))) is None


def test_a_list_that_changes_is_no_loop() -> None:
    assert first_loop([token for item in range(100) for token in (1, 2, 1000 + item, 3)]) is None
