"""Packed passes give the text and the scores of the plain way, on every family they say they support."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.engine.packed.attend_by_views import ByViews
from pipeline.engine.packed.engine import PackedEngine
from pipeline.engine.packed.page_allocator import Move
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.support import sliding_window, unsupported
from pipeline.engine.static.engine import StaticEngine
from pipeline.records import Decode, Generation, Plan, Request, Score
from tests.equivalence.equality import (
    assert_equal_texts,
    reference_features,
    reference_scores,
    reference_text,
)
from tests.equivalence.families import FAMILIES, QUICK, prompts, tiny_model
from tests.equivalence.test_families import CONTINUATIONS, END_IDS, NEW_TOKENS, asked, made

PLAN = Plan("float32", "none", "device", "instructions_first", 512, 4, 10_000, 100, 1)
PLANS = {
    "few rows": PLAN,
    "one row": dataclasses.replace(PLAN, max_batch_rows=1),
    "small chunks": dataclasses.replace(PLAN, prefill_chunk_tokens=13),
}
# Families whose attention does not go through the library's interface, or has a form that packed passes do
# not do.
STATIC = {
    "falcon (MQA)",
    "falcon (ALiBi)",
    "bloom (ALiBi)",
    "gemma2",
    "qwen3_next (hybrid)",
    "mamba2 (recurrent)",
}
families = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in FAMILIES]
)


class Watched(StaticEngine):
    """The static engine, counting what is handed over to it."""

    handed = 0

    def admit(self, requests: Any) -> None:
        self.handed += len(requests)
        super().admit(requests)


def run(
    model: Any, plan: Plan, requests: list[Request], window: int | None = None
) -> tuple[list[Generation], int]:
    static = Watched(model, plan, end_ids=END_IDS, pad_id=0)
    engine = PackedEngine(model, plan, end_ids=END_IDS, static=static, window=window)
    engine.admit(requests[:5])
    done: list[Generation] = []
    late = requests[5:]
    while not engine.idle or late:
        done += engine.step()
        if late and len(done) > 1:
            engine.admit(late)
            late = []
    model.set_attn_implementation("sdpa")
    assert [generation.error for generation in done] == [None] * len(requests)
    return sorted(done, key=lambda generation: generation.request_id), static.handed


@functools.cache
def features(family: str, prefix_tokens: int) -> list[torch.Tensor]:
    model = made(family, prefix_tokens)[0]
    return [reference_features(model, prompt) for prompt in asked(prefix_tokens)]


@families
def test_which_families_are_supported(family: str) -> None:
    reason = unsupported(tiny_model(family), PLAN)
    assert (reason is None) == (family not in STATIC), reason


@families
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("prefix_tokens", [0, 20])
def test_same_texts(family: str, plan: str, prefix_tokens: int) -> None:
    model = tiny_model(family)
    if unsupported(model, PLAN) is not None:
        pytest.skip("runs on the static engine, which has its own tests")
    sent, (_, texts, _) = asked(prefix_tokens), made(family, prefix_tokens)
    window = sliding_window(model.config)
    done, handed = run(
        model,
        PLANS[plan],
        [Request(i, prompt, Decode(NEW_TOKENS), prefix_tokens) for i, prompt in enumerate(sent)],
        window,
    )
    assert assert_equal_texts(texts, [generation.token_ids for generation in done]) <= 1
    assert handed == (0 if window is None else sum(len(prompt) + NEW_TOKENS > window for prompt in sent))
    if PLANS[plan].max_batch_rows > 1 and window is None:
        assert max(generation.batch_rows for generation in done) > 1


@families
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("prefix_tokens", [0, 20])
@pytest.mark.parametrize("tolerance", [0.0, 1e-9])
def test_same_scores(
    family: str, plan: str, prefix_tokens: int, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tolerance 0 the whole tree rides with the prompt; with a tiny one the search computes it in
    rounds.
    """
    monkeypatch.setattr("pipeline.engine.packed.scheduler.RIDING_NODES", 0)
    # these models spread their probability: it would never search
    monkeypatch.setattr("pipeline.engine.packed.label_trie.SearchWorth.pays", tolerance > 0)
    model = tiny_model(family)
    if unsupported(model, PLAN) is not None:
        pytest.skip("runs on the static engine, which has its own tests")
    expected = torch.tensor(made(family, prefix_tokens)[2])
    requests = [
        Request(i, prompt, Score(CONTINUATIONS, tolerance, features=True), prefix_tokens)
        for i, prompt in enumerate(asked(prefix_tokens))
    ]
    done, _ = run(model, PLANS[plan], requests, sliding_window(model.config))
    found = torch.tensor([generation.scores for generation in done])
    if (
        tolerance == 0
    ):  # float32 rounding: granite's scores of -31 differ by 1.4e-4; the probabilities below keep to 1e-4
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1), atol=1e-4, rtol=0)
    for wanted, generation in zip(features(family, prefix_tokens), done, strict=True):
        seen = torch.from_numpy(np.frombuffer(generation.features, "<f2").astype(np.float32))
        # half precision
        torch.testing.assert_close(seen, wanted, atol=1e-3, rtol=1e-3)


def test_a_shared_prefix_is_read_once_and_never_changed() -> None:
    model = tiny_model("llama (GQA)")
    static = StaticEngine(model, PLAN, end_ids=END_IDS, pad_id=0)
    engine = PackedEngine(model, PLAN, end_ids=END_IDS, static=static, window=None)
    engine.admit([Request(i, prompt, Decode(8), 20) for i, prompt in enumerate(asked(20))])
    engine.step()
    (prefix,) = engine._scheduler.cached.held
    before = [(keys.clone(), values.clone()) for _, (keys, values) in engine._pool.read(prefix.run, 0, 20)]
    while not engine.idle:
        engine.step()
    assert engine._scheduler.cached.held == [prefix]
    assert prefix.tokens == 20
    for (_, (keys, values)), kept in zip(engine._pool.read(prefix.run, 0, 20), before, strict=True):
        assert torch.equal(keys, kept[0])
        assert torch.equal(values, kept[1])


def test_a_wrong_prefix_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the comparison would see a prefix of the same length with one other token."""
    model = tiny_model("llama (GQA)")
    expected = torch.tensor(made("llama (GQA)", 20)[2])
    wrong = [
        Request(i, (prompt[0], prompt[1] ^ 1, *prompt[2:]), Score(CONTINUATIONS), 20)
        for i, prompt in enumerate(asked(20))
    ]
    done, _ = run(model, PLAN, wrong)
    found = torch.tensor([generation.scores for generation in done])
    assert float((found - expected).abs().max()) > 1e-2


def test_a_model_that_raises_in_company_is_left_to_the_static_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama (GQA)")
    _, texts, _ = made("llama (GQA)")
    broken = iter([True, False])

    def attention(*_: Any) -> Any:
        if next(broken, False):
            raise RuntimeError("DefaultCPUAllocator: not enough memory")
        return real(*_)

    real = ByViews.attend
    monkeypatch.setattr(ByViews, "attend", attention)
    done, handed = run(
        model, PLAN, [Request(i, prompt, Decode(NEW_TOKENS)) for i, prompt in enumerate(asked())]
    )
    assert handed > 0
    assert math.isclose(
        assert_equal_texts(texts, [generation.token_ids for generation in done]), 0, abs_tol=1
    )


def test_rows_come_go_and_are_released_at_any_time() -> None:
    """Random requests of all kinds, admitted in waves, some released under way: the others are answered as if
    alone.
    """
    chance = random.Random(5)
    model = tiny_model("llama (GQA)")
    shared = prompts((40,))[0]
    requests = [_any_request(chance, number, shared) for number in range(1, 41)]
    static = Watched(model, PLAN, end_ids=END_IDS, pad_id=0)
    engine = PackedEngine(
        model,
        dataclasses.replace(PLAN, max_batch_rows=6, batch_tokens=3000),
        end_ids=END_IDS,
        static=static,
        window=None,
    )
    found: dict[int, Generation] = {}
    released: set[int] = set()
    waiting = list(requests)
    while waiting or not engine.idle:
        size = chance.randrange(1, 6)
        wave, waiting = waiting[:size], waiting[size:]
        engine.admit(wave)
        gone = chance.choice(requests).request_id
        if chance.random() < 0.2 and gone not in found:
            released.add(gone)
            engine.release([gone])
        found.update((generation.request_id, generation) for generation in engine.step())
    model.set_attn_implementation("sdpa")
    assert static.handed == 0
    assert not engine._scheduler.cached._users
    kept = {part.run for held in engine._scheduler.cached.held for part in held.chain}
    assert set(engine._scheduler.pool.runs) == kept
    for request in requests:
        if request.request_id in found:
            _check_alone(model, request, found[request.request_id])
    assert {request.request_id for request in requests} - released <= set(found)


def test_rows_that_are_moved_while_they_decode_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool for little more than what runs: runs are moved for newcomers, also over their own old places."""
    monkeypatch.setattr("pipeline.engine.packed.page_allocator.COMPACT_BELOW", 1.0)
    moved: list[Move] = []
    move = KvPool.move
    monkeypatch.setattr(KvPool, "move", lambda pool, moves: (moved.append(moves), move(pool, moves)))
    model, chance = tiny_model("llama (GQA)"), random.Random(8)
    prefix = prompts((20,))[0]
    asked = [
        (*prefix, *(chance.randrange(15, 199) for _ in range(chance.choice((10, 60, 150)))))
        for _ in range(30)
    ]
    requests = [
        Request(number, ids, Decode(chance.choice((3, 40))), 20 * (number % 2))
        for number, ids in enumerate(asked)
    ]
    done, handed = run(model, dataclasses.replace(PLAN, batch_tokens=500), requests)
    assert any(each.pages > each.source - each.target for each in moved)
    assert handed == 0
    for request, generation in zip(requests, done, strict=True):
        _check_alone(model, request, generation)


def _any_request(chance: random.Random, number: int, shared: tuple[int, ...]) -> Request:
    prefix = shared[: chance.choice((0, 20, 40))]
    own = tuple(chance.randrange(15, 199) for _ in range(chance.choice((1, 2, 5, 30, 99, 101, 150))))
    ask: Decode | Score = Decode(chance.choice((1, 5, 30)))
    if chance.random() < 0.5:
        sequences = {
            (*(chance.randrange(20, 30) for _ in range(chance.randrange(1, 4))), 2)
            for _ in range(chance.choice((2, 5, 30)))
        }
        ask = Score(tuple(sorted(sequences)))
    return Request(number, (*prefix, *own), ask, len(prefix))


def _check_alone(model: Any, request: Request, found: Generation) -> None:
    if isinstance(request.ask, Decode):
        text = reference_text(model, request.ids, END_IDS, request.ask.max_new_tokens)
        assert assert_equal_texts([text], [found.token_ids]) <= 1
    else:
        expected = torch.tensor(reference_scores(model, request.ids, request.ask.continuations))
        torch.testing.assert_close(torch.tensor(found.scores), expected, atol=1e-4, rtol=0)
