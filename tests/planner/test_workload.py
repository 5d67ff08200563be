"""Totals from samples: exact where the sample is all, honest about their error where it is not; histograms
that lose nobody.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.planner.workload import Asked, Question, TaskLoad, histogram, regression_total

PAIRS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=40)


@given(PAIRS)
def test_a_sample_of_everything_is_exact(pairs: list[tuple[int, int]]) -> None:
    found = regression_total(pairs, len(pairs), sum(x for x, _ in pairs))
    assert found.value == pytest.approx(sum(y for _, y in pairs), abs=1e-3)
    assert found.error == 0


@given(
    st.lists(st.integers(1, 10**5), min_size=3, max_size=30, unique=True),
    st.integers(1, 9),
    st.integers(1, 50),
)
def test_what_length_explains_has_no_error(lengths: list[int], tokens: int, more: int) -> None:
    count, total = len(lengths) * more, sum(lengths) * more + more
    found = regression_total([(x, x / tokens + 7) for x in lengths], count, total)
    assert found.value == pytest.approx(total / tokens + 7 * count, rel=1e-6)
    assert found.error == pytest.approx(0, abs=1e-3 * count)


def test_the_error_is_as_large_as_it_says() -> None:
    chance = random.Random(3)
    all_pairs = [(x := chance.randint(10, 5000), x / 4 + chance.gauss(0, 60)) for _ in range(4000)]
    truth, characters = sum(y for _, y in all_pairs), sum(x for x, _ in all_pairs)
    off = []
    for _ in range(200):
        found = regression_total(chance.sample(all_pairs, 64), len(all_pairs), characters)
        off.append((found.value - truth) / found.error)
    assert sum(abs(each) <= 2 for each in off) >= 180  # about 95 of 100
    assert sum(abs(each) <= 1 for each in off) <= 160  # and it is not simply large


def test_an_expected_length_shortens_answers_only() -> None:
    asked = Asked(100, 25, (Question(60, 0, 96), Question(60, 0, 10)))
    assert [TaskLoad("t", "summarize", 1, 100, (asked,)).written_tokens(one) for one in asked.questions] == [
        96,
        10,
    ]
    assert [
        TaskLoad("t", "summarize", 1, 100, (asked,), 40.0).written_tokens(one) for one in asked.questions
    ] == [40, 10]


@given(st.lists(st.integers(0, 10**7), max_size=200))
def test_a_histogram_counts_everybody_once(values: list[int]) -> None:
    bars = histogram(values)
    assert sum(count for _, _, count in bars) == len(values)
    assert all(high == low_of_next for (_, high, _), (low_of_next, _, _) in itertools.pairwise(bars))
