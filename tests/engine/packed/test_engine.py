"""Whatever fails while a pass is prepared or run, no page is lost and the requests are still answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from pipeline.engine.packed.answers import LabelAnswer, TextAnswer
from pipeline.engine.packed.attend_by_views import ByViews
from pipeline.engine.packed.engine import PackedEngine
from pipeline.engine.packed.feed import Feed
from pipeline.engine.packed.model_runner import PackedModelRunner
from pipeline.engine.packed.page_allocator import PageAllocator
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.prefix_cache import PrefixCache
from pipeline.records import Decode, Generation, Plan, Request, Score
from tests.equivalence.equality import assert_equal_texts, reference_text
from tests.equivalence.families import prompts, tiny_model
from tests.equivalence.test_families import CONTINUATIONS
from tests.equivalence.test_packed import Watched
from tests.tiers import quick

PLAN = Plan("float32", "none", "device", "document_first", 512, 4, 10_000, 100, 1)
DOCUMENT = prompts((70,), seed=4)[0]
QUESTIONS = prompts((5, 12, 7), seed=5)
NEW_TOKENS = 6


def requests() -> list[Request]:
    return [
        Request(number, (*DOCUMENT, *question), Decode(NEW_TOKENS), 0, len(DOCUMENT))
        for number, question in enumerate(QUESTIONS)
    ]


def test_out_of_memory_while_keys_are_written_loses_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows of a pass have their keys in the pool in some layers, and there is no memory for the rest."""
    model = tiny_model("llama (GQA)")
    write, calls = KvPool.write, 0

    def short(self: KvPool, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:  # the document in all three layers, the questions in one
            raise torch.OutOfMemoryError("CUDA out of memory")
        return write(self, *arguments)

    monkeypatch.setattr(KvPool, "write", short)
    static = Watched(model, PLAN, end_ids=(), pad_id=0)
    engine = PackedEngine(model, PLAN, end_ids=(), static=static, window=None)
    engine.admit(requests())
    done = list(finished(engine))
    model.set_attn_implementation("sdpa")
    assert calls >= 5
    assert static.handed == len(QUESTIONS)
    assert nothing_left(engine)
    assert engine._pool.tokens == 16 * engine._scheduler.pool.pages < PLAN.batch_tokens
    found = sorted(done, key=lambda generation: generation.request_id)
    texts = [reference_text(model, request.ids, (), NEW_TOKENS) for request in requests()]
    assert assert_equal_texts(texts, [generation.token_ids for generation in found]) <= 1


def nothing_left(engine: PackedEngine) -> bool:
    """No page is given out, none is counted, no beginning is kept."""
    scheduler = engine._scheduler
    return (scheduler.pool.used, scheduler.pages, len(scheduler.cached)) == (0, 0, 0)


FAULTS = {
    "pages": (PageAllocator, "take"),
    "keys written": (KvPool, "write"),
    "keys seen": (ByViews, "attend"),
    "a beginning read": (PackedModelRunner, "extend"),
    "a pass": (PackedModelRunner, "run"),
    "a token taken in": (TextAnswer, "take_in"),
    "scores taken in": (LabelAnswer, "take_in"),
    "a document that is finished": (PrefixCache, "finish"),
}


@pytest.mark.parametrize(("call", "error"), [(1, MemoryError), (3, ValueError)])
@pytest.mark.parametrize("fault", quick(FAULTS, "pages", "keys seen", "a pass", "scores taken in"))
def test_a_failure_anywhere_leaves_nothing_behind_and_nobody_without_an_answer(
    fault: str, call: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts and labels about two documents; later questions are answered by packed passes again."""
    model = tiny_model("llama (GQA)")
    documents, calls = prompts((70, 90), seed=4), 0
    asked = [
        Request(
            number,
            (*documents[number % 2], *question, number + 3),
            Decode(NEW_TOKENS) if number < 6 else Score(CONTINUATIONS),
            0,
            len(documents[number % 2]),
        )
        for number, question in enumerate(QUESTIONS * 4)
    ]
    owner, name = FAULTS[fault]
    real = getattr(owner, name)

    def fails(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error("DefaultCPUAllocator: not enough memory")
        return real(*arguments, **named)

    static = Watched(model, PLAN, end_ids=(), pad_id=0)
    engine = PackedEngine(model, PLAN, end_ids=(), static=static, window=None)
    engine.admit(asked)
    monkeypatch.setattr(owner, name, fails)
    done = list(finished(engine))
    assert calls >= min(call, 2)
    assert sorted(generation.request_id for generation in done) == list(range(len(asked)))
    assert all(generation.error is None for generation in done)
    assert nothing_left(engine)
    handed = static.handed
    engine.admit(asked[:1])
    (again,) = finished(engine)
    model.set_attn_implementation("sdpa")
    assert static.handed == handed
    text = reference_text(model, asked[0].ids, (), NEW_TOKENS)
    assert assert_equal_texts([text], [again.token_ids]) <= 1


def test_one_that_runs_out_of_memory_alone_does_not_part_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama (GQA)")
    real = PackedModelRunner.run

    def short(self: PackedModelRunner, feeds: Sequence[Feed]) -> torch.Tensor:
        if sum(feed.size for feed in feeds) > 90:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, feeds)

    monkeypatch.setattr(PackedModelRunner, "run", short)
    static = Watched(model, PLAN, end_ids=(), pad_id=0)
    engine = PackedEngine(model, PLAN, end_ids=(), static=static, window=None)
    engine.admit([Request(100, prompts((95,), seed=4)[0], Score(CONTINUATIONS))])
    assert [generation.request_id for generation in finished(engine)] == [100]
    assert static.handed == 1
    engine.admit([Request(number, ids, Decode(3)) for number, ids in enumerate(prompts((7,) * 4, seed=6))])
    assert [generation.batch_rows for generation in finished(engine)] == [4] * 4
    assert static.handed == 1
    model.set_attn_implementation("sdpa")


def test_who_is_read_for_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends while it reads a document has died of that document, not of those beside it."""
    model = tiny_model("llama (GQA)")
    told: list[int] = []
    before: list[list[int]] = []
    real = PackedModelRunner.extend

    class Hears:
        def started(self, request_ids: Sequence[int]) -> None:
            told.extend(request_ids)

        def pulse(self) -> None: ...

    def extend(self: PackedModelRunner, *arguments: Any) -> None:
        before.append([*told])
        real(self, *arguments)

    monkeypatch.setattr(PackedModelRunner, "extend", extend)
    static = Watched(model, PLAN, end_ids=(), pad_id=0)
    engine = PackedEngine(model, PLAN, end_ids=(), static=static, window=None)
    engine.listener = Hears()
    engine.admit(requests())
    assert len(list(finished(engine))) == len(QUESTIONS)
    model.set_attn_implementation("sdpa")
    assert before[0] == [0]
    assert set(told) == {0, 1, 2}


@pytest.mark.parametrize("searched", [False, True])
def test_no_pass_is_asked_for_more_logits_than_are_planned_for(
    searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of five tokens with twenty nodes each: all would fit into one pass by their tokens."""
    monkeypatch.setattr("pipeline.engine.packed.label_trie.SearchWorth.pays", searched)
    most, labels = 64, tuple((number, number + 1) for number in range(1, 21))
    asked = [Request(row, ids, Score(labels, 1e-9)) for row, ids in enumerate(prompts((5,) * 8, seed=2))]
    seen: list[int] = []
    run = PackedModelRunner.run

    def counted(self: PackedModelRunner, feeds: Sequence[Feed]) -> torch.Tensor:
        logits = run(self, feeds)
        seen.append(len(logits))
        return logits

    monkeypatch.setattr(PackedModelRunner, "run", counted)
    model = tiny_model("llama (GQA)")
    found, passes = [], []
    for bound in (most, None):
        plan = replace(PLAN, max_batch_rows=8, prefill_chunk_tokens=1000, pass_logits=bound)
        static = Watched(model, plan, end_ids=(), pad_id=0)
        engine = PackedEngine(model, plan, end_ids=(), static=static, window=None)
        engine.admit(asked)
        found.append({one.request_id: one.scores for one in finished(engine)})
        passes.append(max(seen))
        seen.clear()
        assert not static.handed
    assert passes[0] <= most < passes[1]
    assert found[0].keys() == found[1].keys() == set(range(8))
    for row, scores in found[0].items():
        assert scores == pytest.approx(found[1][row], abs=1e-4)


def test_a_device_that_is_lost_is_nobodys_and_nobody_else_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits has not started, so that it is not among those in doubt."""
    begun: list[int] = []

    class Watcher:
        def started(self, request_ids: Sequence[int]) -> None:
            begun.extend(request_ids)

        def pulse(self) -> None: ...

    def lost(*_: Any) -> torch.Tensor:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(PackedModelRunner, "run", lost)
    model, plan = tiny_model("llama (GQA)"), replace(PLAN, max_batch_rows=2)
    static = Watched(model, plan, end_ids=(), pad_id=0)
    engine = PackedEngine(model, plan, end_ids=(), static=static, window=None)
    engine.listener = Watcher()
    engine.admit([Request(row, ids, Decode(2)) for row, ids in enumerate(prompts((9,) * 6, seed=1))])
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        engine.step()
    assert (begun, static.handed) == ([0, 1], 0)


def finished(engine: PackedEngine) -> Iterator[Generation]:
    while not engine.idle:
        yield from engine.step()
