"""Batches under a plan: every request once, bounds hold, padding bounded."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.backoff import RowLimits
from pipeline.engine.batching import (
    PADDED_TO_AT_MOST,
    SHORT_TOKENS,
    batch_columns,
    chunk_columns,
    new_tokens,
    next_batch,
    prefill_groups,
    row_tokens,
)
from pipeline.records import Decode, Plan, Request, Score

PLAN = Plan("float32", "none", "device", "instructions_first", 4096, 8, 4000, 512, 1000)

asks = st.one_of(
    st.integers(1, 200).map(Decode),
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6).map(tuple), min_size=1, max_size=4)
    .map(tuple)
    .map(Score),
)
prompt_lengths = st.one_of(st.integers(1, 40), st.integers(1, 3000))


@st.composite
def queues(draw: st.DrawFn) -> list[Request]:
    shapes = draw(st.lists(st.tuples(prompt_lengths, asks), min_size=1, max_size=40))
    return [Request(index, (7,) * length, ask) for index, (length, ask) in enumerate(shapes)]


def drained(queue: list[Request], plan: Plan, limits: RowLimits, equal_lengths: bool) -> list[list[Request]]:
    left, batches = {request.request_id: request for request in queue}, []
    while left:
        batch = next_batch(left.values(), plan, row_limit=limits.rows, equal_lengths=equal_lengths)
        assert batch, "a queue that is not empty gives a batch"
        for request in batch:
            del left[request.request_id]
        batches.append(batch)
    return batches


@given(
    queues(),
    st.integers(1, 12),
    st.integers(200, 9000),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 17))),
)
def test_every_request_once_and_within_bounds(
    queue: list[Request], rows: int, tokens: int, equal_lengths: bool, lessons: list[tuple[int, int]]
) -> None:
    plan = dataclasses.replace(PLAN, max_batch_rows=rows, batch_tokens=tokens)
    limits = RowLimits()
    for lesson in lessons:
        limits.failed(*lesson)
    batches = drained(queue, plan, limits, equal_lengths)
    assert sorted(request.request_id for batch in batches for request in batch) == list(range(len(queue)))
    for batch in batches:
        lengths = [len(request.ids) for request in batch]
        assert len({type(request.ask) for request in batch}) == 1
        assert len(batch) <= rows
        assert len(batch) == 1 or len(batch) * batch_columns(batch) <= tokens
        assert len(batch) <= (limits.rows(batch_columns(batch)) or rows)
        assert lengths == sorted(lengths, reverse=True)
        assert all(
            lengths[0] <= PADDED_TO_AT_MOST * length or lengths[0] - length <= SHORT_TOKENS
            for length in lengths
        )
        assert not equal_lengths or len(set(lengths)) == 1
    assert [len(batch[0].ids) for batch in batches] == sorted(
        (len(batch[0].ids) for batch in batches), reverse=True
    )


@given(queues())
def test_order_of_arrival_does_not_matter(queue: list[Request]) -> None:
    assert next_batch(queue, PLAN) == next_batch(queue[::-1], PLAN)


def test_batches_are_filled() -> None:
    queue = [Request(index, (1,) * 100, Decode(20)) for index in range(20)]
    assert [len(batch) for batch in drained(queue, PLAN, RowLimits(), False)] == [8, 8, 4]
    narrow = dataclasses.replace(PLAN, batch_tokens=360)
    assert [len(batch) for batch in drained(queue, narrow, RowLimits(), False)] == [3] * 6 + [2]


def test_lengths_of_requests() -> None:
    scored = Request(1, (1, 2, 3), Score(((1,), (1, 2, 3, 4))))
    assert (new_tokens(scored), row_tokens(scored)) == (4, 7)
    assert row_tokens(Request(2, (1, 2, 3), Decode(10))) == 13
    assert batch_columns([Request(1, (1,) * 50, Decode(5)), Request(2, (1,) * 20, Decode(60))]) == 110


@given(st.lists(st.integers(1, 600), max_size=40), st.integers(16, 1024))
def test_prefill_groups_cover_all_rows_within_the_chunk(lengths: list[int], chunk_tokens: int) -> None:
    groups = prefill_groups(lengths, chunk_tokens)
    assert [row for group in groups for row in group] == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[row] for row in group)
        assert len(group) == 1 or len(group) * longest <= chunk_tokens
        assert chunk_columns(len(group), chunk_tokens) * len(group) <= chunk_tokens


def test_chunks_always_advance() -> None:
    assert chunk_columns(100, 16) == 1
