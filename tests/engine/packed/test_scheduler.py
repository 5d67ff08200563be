"""The scheduler alone, without a model: any arrivals, any failures, any order of things."""

from __future__ import annotations

import itertools
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.engine.packed.scheduler import RIDING_NODES, Scheduler
from pipeline.engine.packed.sequence import Beginning, Budget, HeldBeginning, Pass, Sequence, pages_of

PATIENCE, PAGES, LOGITS = 8, 80, 60
PREFIXES = [None, Beginning(1, 20), Beginning(2, 60)]
DOCUMENTS = [None, Beginning(11, 70), Beginning(12, 150), Beginning(13, 151), Beginning(14, 400)]


def budget(
    rows: int = 4,
    tokens: int = 100,
    pages: int = PAGES,
    decoding_rows: int = 4,
    logits: int | None = LOGITS,
) -> Budget:
    return Budget(rows, tokens, pages, decoding_rows, logits)


@st.composite
def sequences(draw: st.DrawFn, number: int) -> Sequence:
    prefix, document = draw(st.sampled_from(PREFIXES)), draw(st.sampled_from(DOCUMENTS))
    begun = max(beginning.tokens if beginning else 0 for beginning in (prefix, document))
    sequence = Sequence(number, begun + draw(st.integers(1, 250)), prefix=prefix, document=document)
    sequence.stored, sequence.awaited = draw(st.booleans()), draw(st.booleans())
    if draw(st.booleans()):
        sequence.new_tokens = draw(st.integers(1, 40))
    else:
        sequence.tree, sequence.tree_tokens = draw(st.integers(0, 1)), draw(st.integers(0, 150))
    return sequence


class Model:
    """What an engine would do: keeps count of rounds left to each running sequence, and of whose tokens are
    in which page of memory.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.left: dict[int, int] = {}
        self.memory: dict[int, int] = {}
        self.admitted: list[int] = []
        self.passes: list[Pass] = []

    def admit(self, held: bool = True) -> None:
        for _ in range(1000):
            admission = self.scheduler.admit()
            for move in self.scheduler.take_moves():
                for page in range(move.pages):
                    self.memory[move.target + page] = self.memory[move.source + page]
            for number in admission.admitted:
                sequence = self.scheduler.sequence(number)
                self.sees(sequence.seen)
                assert sequence.unread == sequence.prompt_tokens - (
                    sequence.seen.tokens if sequence.seen else 0
                )
                if sequence.run is not None:
                    self.memory.update(dict.fromkeys(range(sequence.run.start, sequence.run.end), -number))
                self.left[number] = sequence.new_tokens or (3 if sequence.pages else 1)
            self.admitted += admission.admitted
            if admission.read is None:
                break
            self.read(admission.reader, admission.read, held)
        else:
            raise AssertionError("admission has no end")

    def sees(self, held: HeldBeginning | None) -> None:
        """All pages of a beginning, and of those that it begins with, are as they were written."""
        for part in held.chain if held is not None else ():
            assert part.pages == pages_of(part.tokens - part.begin)
            assert {self.memory[page] for page in range(part.run.start, part.run.end)} == {part.key}

    def read(self, reader: int, beginning: HeldBeginning, held: bool) -> None:
        self.sees(beginning.base)
        sequence = self.scheduler.sequence(reader)
        held = held or (sequence.prefix is not None and beginning.key == sequence.prefix.key)
        if held:
            self.memory.update(dict.fromkeys(range(beginning.run.start, beginning.run.end), beginning.key))
        computed = (beginning.tokens - beginning.begin) * held
        self.scheduler.has_read(reader, held=held, computed_tokens=computed)

    def run(self) -> list[int]:
        """One pass; who finished by it."""
        planned = self.scheduler.schedule()
        self.passes.append(planned)
        done = list(planned.decode)
        read = [number for number, tokens in planned.prefill.items() if self.unread(number) == tokens]
        asked = len(done) + sum(self.scheduler.sequence(number).logits for number in read)
        most = self.scheduler.budget.logits
        assert most is None or asked <= most or len(read) == 1
        for number, tokens in planned.prefill.items():
            self.scheduler.advance(number, tokens)
            done += [] if self.scheduler.sequence(number).unread else [number]
        for number in done:
            self.left[number] -= 1
        return [number for number in done if not self.left[number]]

    def unread(self, number: int) -> int:
        return self.scheduler.sequence(number).unread

    def leave(self, number: int) -> None:
        self.scheduler.forget(number)
        self.left.pop(number, None)

    @property
    def kept(self) -> set[int]:
        """Keys of the beginnings that are in memory."""
        return {held.key for held in self.scheduler.cached.held}

    def step(self, held: bool = True) -> list[int]:
        self.admit(held)
        finished = self.run()
        for number in finished:
            self.leave(number)
        return finished


class Passes(RuleBasedStateMachine):
    """Arrivals, passes, releases and failures at any point, against what must always hold."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(Scheduler(budget(), patience=PATIENCE))
        self.here: dict[int, Sequence] = {}
        self.left: list[int] = []
        self.number = 0

    @property
    def scheduler(self) -> Scheduler:
        return self.model.scheduler

    def go(self, number: int) -> None:
        del self.here[number]  # KeyError: it left twice
        self.left.append(number)

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        self.number += 1
        sequence = data.draw(sequences(self.number))
        if not self.scheduler.takes(sequence):  # an engine leaves it to others
            self.left.append(self.number)
            return
        self.here[self.number] = sequence
        self.scheduler.add(sequence)

    @rule(held=st.booleans())
    def one_pass(self, held: bool) -> None:
        for number in self.model.step(held):
            self.go(number)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.here)))
        self.model.leave(number)
        self.go(number)

    @rule(where=st.sampled_from(["before", "while reading", "admitted", "scheduled"]), memory=st.booleans())
    def fail(self, where: str, memory: bool) -> None:
        """Something raises at that point: all that runs is handed on, or the one whose turn it is."""
        running = set(self.scheduler.running)
        if where == "while reading":
            running |= set(self.scheduler.admit().admitted)
        elif where != "before":
            self.model.admit()
            running = set(self.scheduler.running)
        if where == "scheduled":
            self.scheduler.schedule()
        given_up = self.scheduler.give_up()
        assert set(given_up) == running or (not running and len(given_up) == min(1, len(self.here)))
        for number in given_up:
            self.model.leave(number)
            self.go(number)
        assert (self.scheduler.pages, self.scheduler.pool.used, self.model.kept) == (0, 0, set())
        if memory:
            self.scheduler.shrink(len(running), 20)
        assert (self.scheduler.pool.used, self.scheduler.pool.pages) == (0, self.scheduler.budget.pages)

    @rule(tree=st.integers(0, 1), rows=st.integers(1, 4))
    def learn(self, tree: int, rows: int) -> None:
        self.scheduler.searched.add(tree)
        self.scheduler.budget.decoding_rows = rows

    @invariant()
    def within_the_budget(self) -> None:
        running = [self.scheduler.sequence(number) for number in self.scheduler.running]
        assert len(running) <= 4
        assert (
            sum(sequence.pages for sequence in running) == self.scheduler.pages - self.scheduler.cached.pages
        )
        sums = self.scheduler._running
        assert sums.decoding == sum(sequence.decodes for sequence in running)
        assert sums.reading_tokens == sum(
            sequence.unread + sequence.riding for sequence in running if sequence.unread
        )
        assert sums.logits == sum(sequence.logits for sequence in running)
        assert self.scheduler.pages <= self.scheduler.pool.used <= self.scheduler.pool.pages <= PAGES
        for planned in self.model.passes[-1:]:
            read = sum(planned.prefill.values())
            assert read <= 100 or len(planned.prefill) == 1
            assert not set(planned.prefill) & set(planned.decode)

    @invariant()
    def nobodys_pages_are_anybody_elses(self) -> None:
        """Runs are those of rows in the model, of what is kept, and of what those see: each once."""
        running = [self.scheduler.sequence(number) for number in self.scheduler.running]
        needed = [sequence.run for sequence in running if sequence.run is not None]
        for held in (*self.scheduler.cached.held, *(sequence.seen for sequence in running)):
            if held is not None:
                self.model.sees(held)
                needed += [part.run for part in held.chain]
        reading = self.scheduler._reading
        needed += [] if reading is None else [part.run for part in reading.chain]
        assert set(needed) == set(self.scheduler.pool.runs)
        for sequence in running:
            if sequence.run is not None:
                assert sequence.run.pages == sequence.pages
                pages = range(sequence.run.start, sequence.run.end)
                assert {self.model.memory[page] for page in pages} == {-sequence.number}

    @invariant()
    def everything_is_somewhere(self) -> None:
        assert len(self.left) == len(set(self.left))
        assert set(self.here) | set(self.left) == set(range(1, self.number + 1))
        assert self.scheduler.idle == (not self.here)
        if not self.here:
            assert self.scheduler.pages == 0

    def teardown(self) -> None:
        """Whatever was done to it, all that is left is answered, each within a bounded number of passes."""
        most = 60 * (len(self.here) + 1)
        for _ in range(most):
            self.one_pass(True)
            self.within_the_budget()
            if not self.here:
                break
        assert not self.here
        assert (self.scheduler.pages, self.scheduler.idle) == (0, True)
        assert self.scheduler.pool.used == sum(
            run.pages for run in {part.run for held in self.scheduler.cached.held for part in held.chain}
        )
        assert not self.scheduler.cached._users


TestPasses = Passes.TestCase
TestPasses.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, phases=[Phase.explicit, Phase.generate]
)


def model_of(*given_: Sequence, **limits: Any) -> Model:
    model = Model(Scheduler(budget(**limits), patience=PATIENCE))
    for sequence in given_:
        model.scheduler.add(sequence)
    return model


@given(st.lists(st.integers(1, 90), min_size=1, max_size=PATIENCE))
def test_longest_first(lengths: list[int]) -> None:
    model = model_of(*(Sequence(number, tokens) for number, tokens in enumerate(lengths)), rows=1)
    while not model.scheduler.idle:
        model.step()
    assert all(lengths[one] >= lengths[two] for one, two in pairwise(model.admitted))


@given(st.integers(1, 200))
def test_nobody_waits_for_ever_behind_longer_ones(tokens: int) -> None:
    """A longer sequence arrives before each pass: the short one has its turn all the same."""
    model = model_of(Sequence(0, tokens, 5), rows=2)
    for number in range(1, 200):
        model.scheduler.add(Sequence(number, 300, 3))
        if 0 in model.step():
            break
    assert 0 in model.admitted
    assert model.admitted.index(0) <= PATIENCE


def test_questions_about_one_document_are_side_by_side_and_it_is_read_once() -> None:
    one, other = Beginning(11, 200), Beginning(12, 200)
    model = model_of(
        *(Sequence(number, 210 + 10 * number, document=(one, other)[number % 2]) for number in range(6))
    )
    reads = []
    real = model.read
    model.read = lambda *arguments: (reads.append(arguments[1].key), real(*arguments))[1]  # type: ignore[method-assign]
    while not model.scheduler.idle:
        model.step()
    assert model.admitted == [0, 2, 4, 1, 3, 5]
    assert reads == [11, 12]
    assert not model.kept


def test_a_document_that_further_questions_want_waits_for_them() -> None:
    model = model_of(Sequence(1, 80, document=Beginning(11, 70), stored=True, awaited=True))
    model.step()
    assert model.kept == {11}
    assert model.scheduler.pages == 0
    model.scheduler.add(Sequence(2, 85, document=Beginning(11, 70)))
    model.step()
    assert model.kept == set()


def test_a_prefix_of_one_prompt_alone_is_not_read_apart() -> None:
    model = model_of(Sequence(1, 80, prefix=PREFIXES[2]))
    model.step()
    assert model.kept == set()
    model = model_of(Sequence(1, 80, prefix=PREFIXES[2]), Sequence(2, 80, prefix=PREFIXES[2]))
    model.step()
    assert model.kept == {2}


def test_the_least_recently_used_prefix_goes() -> None:
    model = model_of()  # prefixes may take twenty pages
    for key in (1, 2, 1, 3):
        for number in (10 * key, 10 * key + 1):
            model.scheduler.add(Sequence(number, 200, prefix=Beginning(key, 150)))
        while not model.scheduler.idle:
            model.step()
    assert model.kept == {1, 3}


def test_a_prompt_that_is_kept_is_read_in_stretches_and_one_that_is_not_at_once() -> None:
    model = model_of(Sequence(1, 250, 2), Sequence(2, 90), tokens=100, rows=2)
    while not model.scheduler.idle:
        model.step()
    assert [planned.prefill for planned in model.passes[:4]] == [{1: 100}, {1: 100}, {1: 50}, {2: 90}]


def test_as_many_trees_ride_in_a_pass_as_it_may_be_asked_for_logits() -> None:
    """Prompts of ten tokens would all fit; texts beside them take their part of the logits."""
    model = model_of(
        *(Sequence(number, 10, tree_tokens=19) for number in range(6)),
        Sequence(6, 12, 5),
        rows=8,
        tokens=1000,
    )
    passes = []
    while not model.scheduler.idle:
        model.step()
        passes.append((len(model.passes[-1].prefill), len(model.passes[-1].decode)))
    assert passes[:4] == [(3, 0), (2, 1), (2, 1), (0, 1)]


def test_a_tree_that_asks_for_more_logits_than_a_pass_may_is_asked_alone() -> None:
    model = model_of(*(Sequence(number, 10, tree_tokens=LOGITS) for number in range(2)), tokens=1000)
    while not model.scheduler.idle:
        model.step()
    assert [planned.prefill for planned in model.passes] == [{0: 10}, {1: 10}]


def test_searches_take_turns_where_a_pass_would_be_asked_for_too_many_logits() -> None:
    model = model_of(*(Sequence(number, 10, tree=1, tree_tokens=99) for number in range(4)), tokens=200)
    model.scheduler.searched = {1}
    model.step()
    for number in range(3):
        model.scheduler.search(number, 29)
    model.scheduler.search(3, LOGITS + 1)  # alone it may
    assert model.scheduler.schedule().decode == (0, 1)
    for number in range(3):
        model.scheduler.forget(number)
    assert model.scheduler.schedule().decode == (3,)


def test_large_trees_that_are_searched_keep_their_prompt() -> None:
    model = model_of(Sequence(1, 50, tree=1, tree_tokens=RIDING_NODES + 1))
    model.scheduler.searched = {1}
    model.admit()
    sequence = model.scheduler.sequence(1)
    assert (sequence.riding, sequence.pages) == (0, pages_of(50))
    model = model_of(Sequence(1, 50, tree=1, tree_tokens=RIDING_NODES))
    model.scheduler.searched = {1}
    model.admit()
    sequence = model.scheduler.sequence(1)
    assert (sequence.riding, sequence.pages) == (RIDING_NODES, 0)


def test_out_of_memory_halves_what_runs_together() -> None:
    model = model_of(*(Sequence(number, 20, 50) for number in range(8)), pages=200)
    model.step()
    assert len(model.scheduler.running) == 4
    for number in model.scheduler.give_up():
        model.leave(number)
    model.scheduler.shrink(4, 20)
    model.step()
    assert len(model.scheduler.running) == 2
    assert model.scheduler.pool.pages == model.scheduler.budget.pages == 100


@pytest.mark.parametrize("new_tokens", [0, 5])
def test_what_a_sequence_costs_does_not_grow_with_its_company(new_tokens: int) -> None:
    """Counted in calls: a pass of hundreds of rows is decided in a small part of the time it takes."""

    def calls(rows: int) -> float:
        limits = {"rows": rows, "tokens": 100 * rows, "pages": 20 * rows, "decoding_rows": rows}
        limits["logits"] = 10 * rows
        model = model_of(*(Sequence(number, 60, new_tokens) for number in range(rows)), **limits)
        counted = itertools.count()
        sys.setprofile(lambda _, event, __: next(counted) if event == "call" else None)
        try:
            model.scheduler.admit()
            model.scheduler.schedule()
        finally:
            sys.setprofile(None)
        assert len(model.scheduler.running) == rows
        return next(counted) / rows

    assert calls(256) <= 1.1 * calls(16)


def test_a_prefix_and_a_document_are_in_memory_once_for_all_who_see_them() -> None:
    prefix, document = Beginning(1, 160), Beginning(11, 480)
    asked = [Sequence(number, 490, 6, prefix=prefix, document=document) for number in range(4)]
    model = model_of(*asked, tokens=600)
    model.admit()
    assert model.scheduler.pool.used == pages_of(160) + pages_of(480 - 160) + 4 * pages_of(10 + 6)
    assert {sequence.seen for sequence in asked} == {model.scheduler.cached.document(document)}
    seen = asked[0].seen
    assert seen is not None
    assert seen.base is model.scheduler.cached.prefix(prefix)
    while not model.scheduler.idle:
        model.step()
    assert model.kept == {1}
    assert model.scheduler.pool.used == pages_of(160)


def test_beginnings_make_way_for_a_row_that_needs_the_whole_pool() -> None:
    """Prefixes that nobody wants, a document that waits for later questions: none of them is in its way."""
    model = model_of(
        *(Sequence(number, 200, prefix=Beginning(1, 150)) for number in range(2)),
        Sequence(3, 80, document=Beginning(11, 70), stored=True, awaited=True),
    )
    while not model.scheduler.idle:
        model.step()
    assert model.kept == {1, 11}
    model.scheduler.add(Sequence(4, 16 * PAGES - 10, 10))
    model.step()
    assert model.scheduler.running == (4,)
    assert model.kept == set()


def test_a_row_larger_than_the_pool_is_not_taken() -> None:
    scheduler = model_of().scheduler
    assert scheduler.takes(Sequence(1, 16 * PAGES - 10, 10))
    assert not scheduler.takes(Sequence(1, 16 * PAGES - 9, 10))


def test_it_needs_no_torch() -> None:
    code = "import sys, pipeline.engine.packed.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
