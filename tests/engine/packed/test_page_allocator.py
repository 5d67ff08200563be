"""The allocator alone: whatever comes and goes, nobody's pages are anybody else's, and little is lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.engine.packed.page_allocator import COMPACT_BELOW, PageAllocator, Run
from pipeline.engine.packed.sequence import PAGE_TOKENS, pages_of

PAGES = 40


class Runs(RuleBasedStateMachine):
    """Runs taken and given back at random, against a memory in which each owner wrote its name."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(PAGES)
        self.memory: list[Run | None] = [None] * PAGES
        self.owned: list[Run] = []

    @rule(pages=st.integers(1, 20), urgent=st.booleans())
    def take(self, pages: int, urgent: bool) -> None:
        fits = self.allocator.fits(pages, urgent=urgent)
        run = self.allocator.take(pages, urgent=urgent)
        for move in self.allocator.take_moves():
            assert move.target < move.source
            moved = self.memory[move.source : move.source + move.pages]
            assert len(set(moved)) == 1
            self.memory[move.target : move.target + move.pages] = moved
        assert (run is not None) == fits
        if urgent:
            assert fits == (pages <= PAGES - sum(held.pages for held in self.owned))
        if run is not None:
            assert run.pages == pages
            self.memory[run.start : run.end] = [run] * pages
            self.owned.append(run)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        run = self.owned.pop(data.draw(st.integers(0, len(self.owned) - 1)))
        self.allocator.give_back(run)

    @invariant()
    def everybody_has_what_he_wrote(self) -> None:
        for run in self.owned:
            assert 0 <= run.start < run.end <= PAGES
            assert self.memory[run.start : run.end] == [run] * run.pages
        assert list(self.allocator.runs) == sorted(self.owned, key=lambda run: run.start)
        assert self.allocator.used == sum(run.pages for run in self.owned)


TestRuns = Runs.TestCase
TestRuns.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


def mixed(chance: random.Random) -> int:
    """Tokens of a row: mostly of some hundreds, a fifth of thousands."""
    return chance.randrange(50, 1500) if chance.random() < 0.8 else chance.randrange(1500, 6000)


@pytest.mark.parametrize("pages", [1200, 4000])
def test_after_ten_thousand_arrivals_and_departures_most_of_the_pool_can_be_given_out(pages: int) -> None:
    """Rows come in their order, as many as fit, and leave at random: whenever one does not fit, and at the
    end, at least ``COMPACT_BELOW`` of the pool is in use or less is free than it wants.
    """
    chance, allocator = random.Random(1), PageAllocator(pages)
    held: list[Run] = []
    moved = given = full = 0.0
    wanted = pages_of(mixed(chance))
    for arrival in range(10_000):
        while (run := allocator.take(wanted)) is None:
            if arrival > 1000:
                assert allocator.used >= min(COMPACT_BELOW * pages, pages - wanted + 1)
                full = full or 1.0
            allocator.give_back(held.pop(chance.randrange(len(held))))
        held.append(run)
        given += run.pages
        moved += sum(move.pages for move in allocator.take_moves())
        wanted = pages_of(mixed(chance))
    while (run := allocator.take(1)) is not None:
        given += 1
    assert full
    assert allocator.used >= 0.85 * pages
    assert moved <= 1.5 * given  # copying a page takes a thousandth of computing it


def test_pages_of_documents_of_a_thousand_tokens_are_nearly_full() -> None:
    chance = random.Random(2)
    tokens = [chance.randrange(900, 1100) + 96 for _ in range(100)]
    assert sum(tokens) / sum(pages_of(row) * PAGE_TOKENS for row in tokens) >= 0.95


def test_the_cheapest_runs_are_moved() -> None:
    allocator = PageAllocator(20)
    long, first, short, second = (allocator.take(pages) for pages in (8, 2, 3, 2))  # 5 behind them
    assert long is not None
    assert first is not None
    assert short is not None
    assert second is not None
    allocator.give_back(first)
    allocator.give_back(second)  # 8 long, hole of 2, 3 short, hole of 7
    run = allocator.take(9)
    assert run is not None
    assert [(move.source, move.target, move.pages) for move in allocator.take_moves()] == [(10, 8, 3)]
    assert (long.start, short.start, run.start) == (0, 8, 11)
    assert allocator.free == 0


def test_a_full_pool_moves_nothing_for_one_that_can_wait() -> None:
    allocator = PageAllocator(20)
    runs = [allocator.take(pages) for pages in (1, 8, 1, 10)]
    for place in (0, 2):
        run = runs[place]
        assert run is not None
        allocator.give_back(run)
    assert allocator.take(2) is None
    assert allocator.fits(2, urgent=True)
    assert allocator.take(2, urgent=True) is not None
