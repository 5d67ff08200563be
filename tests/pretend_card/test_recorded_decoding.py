"""Decoding by recorded passes gives what it gives launch by launch, for one replay and one wait a pass."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from pipeline.engine.model.fused import fuse
from pipeline.engine.packed.decode_passes import padded, recorded_sizes
from pipeline.engine.packed.engine import PackedEngine
from pipeline.engine.packed.pass_results import PassResults
from pipeline.engine.static.engine import StaticEngine
from pipeline.records import Decode, Generation, Plan, Request, Sampling
from tests.equivalence.families import prompts, tiny_model

Cards = Callable[..., None]
PLAN = Plan("bfloat16", "none", "device", "instructions_first", 512, 10, 10_000, 400, 1)
PROMPTS = prompts((7, 40, 3, 21, 30, 12, 18, 9, 33, 25, 5, 16))
PREFIX = prompts((40,), seed=5)[0]
NEW_TOKENS = 12
# Between two ways of rounding to bfloat16 in three layers, for logits of up to 9 that spread by 2; at most
# 0.21 was seen. Of another text they are apart by as much as they spread.
LOGITS_BOUND = 0.3


def requests(prefix: bool, sampled: bool = False) -> list[Request]:
    shared = PREFIX if prefix else ()
    return [
        Request(
            number,
            (*shared, *ids),
            Decode(NEW_TOKENS - number % 4, Sampling(0.9, 0.95, 20, seed=number) if sampled else None),
            len(shared),
        )
        for number, ids in enumerate(PROMPTS)
    ]


def engine_of(model: Any, plan: Plan = PLAN, end_ids: tuple[int, ...] = ()) -> PackedEngine:
    static = StaticEngine(model, plan, end_ids=end_ids, pad_id=0)
    return PackedEngine(model, plan, end_ids=end_ids, static=static, window=None)


def finished(engine: PackedEngine) -> list[Generation]:
    found: list[Generation] = []
    while not engine.idle:
        found += engine.step()
    return sorted(found, key=lambda generation: generation.request_id)


@pytest.fixture
def model(cards: Cards) -> Any:
    cards("rtx4060")
    made = tiny_model("qwen3", torch.bfloat16).to("cuda")
    fuse(made)
    yield made
    made.set_attn_implementation("sdpa")


def test_sizes_are_small_numbers_and_every_eighth() -> None:
    assert recorded_sizes(20) == [24, 16, 8, 4, 2, 1]
    assert [padded(rows) for rows in (1, 2, 3, 5, 8, 9, 17)] == [1, 2, 4, 8, 8, 16, 24]


@pytest.mark.parametrize(
    ("prefix", "sampled"),
    [
        (True, False),
        (False, True),
        pytest.param(False, False, marks=pytest.mark.full),
        pytest.param(True, True, marks=pytest.mark.full),
    ],
)
def test_texts_are_those_of_passes_that_are_not_recorded(
    model: Any, card: Any, prefix: bool, sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come and go, so that passes of all sizes are replayed, filled up with rows of nobody."""
    recorded = engine_of(model)
    assert recorded.record_decoding() == "decoding is recorded for up to 10 rows"
    recorded.admit(requests(prefix, sampled))
    replays = card.counts().get("graph replays", 0)
    found = finished(recorded)
    assert card.counts()["graph replays"] - replays >= NEW_TOKENS - 1
    plainly = engine_of(model)
    plainly.record_decoding()
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", None)  # used here it would raise
    plainly._runner.forget_recorded()
    plainly.admit(requests(prefix, sampled))
    expected = finished(plainly)
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert len({one.token_ids for one in found}) == len(PROMPTS)


class _Watched(PassResults):
    """Keeps the logits that each text's tokens were chosen by."""

    seen: ClassVar[dict[int, list[torch.Tensor]]] = {}

    def __init__(self, feeds: Any, logits: torch.Tensor, *more: Any) -> None:
        super().__init__(feeds, logits, *more)
        for part in self._parts:
            self.seen.setdefault(part.running.request.request_id, []).append(logits[part.begin].cpu())


@pytest.mark.parametrize("prefix", [True, pytest.param(False, marks=pytest.mark.full)])
def test_logits_are_those_of_the_processor(
    cards: Cards, card: Any, prefix: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every token of every text, by recorded passes of all sizes, beside those of the processor for the
    same text, a document at a time. Where the card's token is not the processor's, both are nearly as likely
    there.
    """
    monkeypatch.setattr("pipeline.engine.packed.engine.PassResults", _Watched)
    _Watched.seen.clear()
    cards("rtx4060")
    near = tiny_model("qwen3", torch.bfloat16)
    far = copy.deepcopy(near).to("cuda")
    fuse(far)
    engine = engine_of(far)
    engine.record_decoding()
    asked = requests(prefix)
    engine.admit(asked)
    ties = tokens = 0
    for request, done in zip(asked, finished(engine), strict=True):
        with torch.inference_mode():
            ids = torch.tensor([[*request.ids, *done.token_ids[:-1]]])
            expected = near(ids, use_cache=False).logits[0, len(request.ids) - 1 :].float()
        found = torch.stack(_Watched.seen[request.request_id][: len(done.token_ids)])
        assert (found - expected).square().mean().sqrt() <= LOGITS_BOUND / 4
        torch.testing.assert_close(found, expected, atol=LOGITS_BOUND, rtol=0)
        ties += sum(
            int(best) != token for best, token in zip(expected.argmax(1), done.token_ids, strict=True)
        )
        tokens += len(done.token_ids)
    assert card.counts()["graph replays"] >= NEW_TOKENS - 1
    assert ties <= tokens / 20


def test_a_pass_is_one_replay_few_launches_and_one_wait(model: Any, card: Any) -> None:
    engine = engine_of(model)
    engine.record_decoding()
    engine.admit(requests(prefix=True)[:8])
    engine.step()
    for _ in range(4):
        before = card.counts()
        engine.step()
        after = card.counts()
        step = {name: after[name] - before.get(name, 0) for name in after}
        assert step["graph replays"] == 1
        assert step["launches"] <= 10
        assert step.get("host waits", 0) <= 1
    finished(engine)


def test_whoever_is_alone_with_another_document_goes_on_unrecorded(model: Any, card: Any) -> None:
    """Rows of several shared beginnings are no pass that was recorded; their texts are each one's alone."""
    documents = prompts((50, 60), seed=9)
    asked = [
        Request(number, (*documents[number % 2], *ids), Decode(6), 0, len(documents[number % 2]))
        for number, ids in enumerate(PROMPTS[:6])
    ]
    engine = engine_of(model)
    engine.record_decoding()
    engine.admit(asked)
    found = finished(engine)
    alone = []
    for request in asked:
        single = engine_of(model)
        single.admit([request])
        alone += finished(single)
    same = sum(one.token_ids == other.token_ids for one, other in zip(found, alone, strict=True))
    assert same >= len(asked) - 1


def test_recordings_go_when_memory_runs_out(model: Any, card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(model)
    engine.record_decoding()
    engine.admit(requests(prefix=False))
    engine.step()
    recorded = engine._runner.decoding
    assert recorded is not None
    assert recorded._graphs
    run, calls = recorded.run, 0

    def short(feeds: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(feeds)

    monkeypatch.setattr(recorded, "run", short)
    found = finished(engine)
    assert [one.error for one in found] == [None] * len(PROMPTS)
    assert recorded._graphs == {}


def test_they_are_recorded_again_once_a_static_batch_had_the_memory(model: Any, card: Any) -> None:
    plan = replace(PLAN, context_tokens=1024, batch_tokens=512)
    engine = engine_of(model, plan)
    engine.record_decoding()
    longer = Request(0, prompts((600,), seed=6)[0], Decode(2))
    engine.admit([longer])
    assert [one.error for one in finished(engine)] == [None]
    assert engine._pool.nbytes == 0
    before = card.counts().get("graph replays", 0)
    engine.admit(requests(prefix=False))
    again = [one.token_ids for one in finished(engine)]
    assert card.counts()["graph replays"] > before
    untouched = engine_of(model, plan)
    untouched.record_decoding()
    untouched.admit(requests(prefix=False))
    assert again == [one.token_ids for one in finished(untouched)]


@pytest.mark.parametrize("failure", [torch.OutOfMemoryError, RuntimeError])
def test_where_it_cannot_be_recorded_again_the_rows_go_on_together(
    model: Any, monkeypatch: pytest.MonkeyPatch, failure: type[RuntimeError]
) -> None:
    """A static batch had the pool's memory; recording asks for more than decoding does."""
    plan = replace(PLAN, context_tokens=1024, batch_tokens=512)
    engine = engine_of(model, plan)
    engine.record_decoding()
    engine._pool.release()
    assert engine._runner.decoding is not None
    assert engine._runner.decoding._graphs

    def short(*_: Any) -> None:
        raise failure("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "graph", short)
    monkeypatch.setattr(engine, "_give_up", _never)
    engine.admit(requests(prefix=False))
    assert [one.error for one in finished(engine)] == [None] * len(PROMPTS)
    assert engine._runner.decoding._graphs == {}


def _never(error: Exception, _: Any) -> None:
    raise AssertionError("the rows went to the static engine") from error


def test_what_cannot_be_recorded_is_told(cards: Cards) -> None:
    cards("t4")
    half = tiny_model("qwen3", torch.float16).to("cuda")
    assert "is for flash attention" in engine_of(half).record_decoding()
    cards("rtx4060")
    assert "is for flash attention" in engine_of(tiny_model("qwen3").to("cuda")).record_decoding()
    experts = tiny_model("mixtral (MoE)", torch.bfloat16).to("cuda")
    engine = engine_of(experts, replace(PLAN, max_batch_rows=2))
    told = engine.record_decoding()
    assert told.startswith("decoding is not recorded: RuntimeError: Cannot copy between CPU and CUDA")
    engine.admit(requests(prefix=False)[:3])
    assert [one.error for one in finished(engine)] == [None] * 3


def test_what_a_recording_that_failed_held_is_given_back(model: Any) -> None:
    held_bytes = 256 * 2**20

    def fail(*_: Any) -> None:
        held = torch.empty(held_bytes, dtype=torch.uint8, device="cuda")
        raise RuntimeError(f"no kernel for {held.nbytes} bytes")

    model.model.layers[-1].register_forward_pre_hook(fail)
    assert engine_of(model).record_decoding().endswith(f"no kernel for {held_bytes} bytes")
    assert torch.cuda.memory_reserved() < held_bytes
