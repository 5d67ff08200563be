"""Packed passes give on a card what they give on a processor, and the host hears of each in one transfer."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import Counter
from typing import Any

import pytest
import torch

from pipeline.engine.model.fused import fuse
from pipeline.engine.packed.engine import PackedEngine
from pipeline.engine.static.engine import StaticEngine
from pipeline.records import Decode, Generation, Plan, Request, Sampling, Score
from tests.equivalence.equality import assert_equal_texts, reference_text
from tests.equivalence.families import prompts, tiny_model
from tests.equivalence.test_families import CONTINUATIONS

PLAN = Plan("float32", "none", "device", "instructions_first", 512, 6, 10_000, 200, 1)
PROMPTS = prompts((7, 40, 3, 21, 30, 12, 18, 9))
NEW_TOKENS = 12
FAMILY = "qwen3"


def texts(sampled: bool = False) -> list[Request]:
    return [
        Request(number, ids, Decode(NEW_TOKENS, Sampling(0.9, 0.95, 20, seed=number) if sampled else None))
        for number, ids in enumerate(PROMPTS)
    ]


def labels(**more: Any) -> list[Request]:
    return [Request(number, ids, Score(CONTINUATIONS, **more)) for number, ids in enumerate(PROMPTS)]


def run(model: Any, requests: list[Request], end_ids: tuple[int, ...] = ()) -> list[Generation]:
    static = StaticEngine(model, PLAN, end_ids=end_ids, pad_id=0)
    engine = PackedEngine(model, PLAN, end_ids=end_ids, static=static, window=None)
    engine.admit(requests)
    found: list[Generation] = []
    while not engine.idle:
        found += engine.step()
    assert static.idle
    model.set_attn_implementation("sdpa")
    assert [generation.error for generation in found] == [None] * len(requests)
    return sorted(found, key=lambda generation: generation.request_id)


def both(requests: list[Request], end_ids: tuple[int, ...] = ()) -> tuple[list[Generation], list[Generation]]:
    model = tiny_model(FAMILY)
    near = run(model, requests, end_ids)
    return run(copy.deepcopy(model).to("cuda"), requests, end_ids), near


def test_texts_are_those_of_the_processor() -> None:
    """With an end token in them: rows end while their next pass is under way already."""
    model = tiny_model(FAMILY)
    plain = [reference_text(model, ids, (), NEW_TOKENS) for ids in PROMPTS]
    common = Counter(token for text in plain for token in text.tokens).most_common(1)[0][0]
    found, near = both(texts(), (common,))
    expected = [reference_text(model, ids, (common,), NEW_TOKENS) for ids in PROMPTS]
    assert {text.ended for text in expected} == {True, False}
    for done in (found, near):
        assert assert_equal_texts(expected, [generation.token_ids for generation in done]) <= 1


def test_sampled_texts_are_drawn_as_on_the_processor() -> None:
    found, near = both(texts(sampled=True))
    assert [one.token_ids for one in found] == [one.token_ids for one in near]
    assert len({one.token_ids for one in found}) == len(PROMPTS)


@pytest.mark.parametrize("tolerance", [0.0, 0.01])
def test_labels_and_states_are_those_of_the_processor(tolerance: float) -> None:
    found, near = both(labels(tolerance=tolerance, features=True))
    for one, other in zip(found, near, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)
        assert len(one.features) == len(other.features) > 0


def test_texts_and_labels_in_one_pass_are_those_of_each_by_itself() -> None:
    """Tokens of texts are late in passes whose first logits are those of label trees."""
    mixed = [
        one if number % 2 else label
        for number, (one, label) in enumerate(zip(texts(), labels(), strict=True))
    ]
    found, near = both(mixed)
    for one, other in zip(found, near, strict=True):
        assert one.token_ids == other.token_ids
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


def test_a_request_may_go_while_its_pass_is_under_way(card: Any) -> None:
    model = tiny_model(FAMILY).to("cuda")
    static = StaticEngine(model, PLAN, end_ids=(), pad_id=0)
    engine = PackedEngine(model, PLAN, end_ids=(), static=static, window=None)
    engine.admit(texts())
    for _ in range(3):
        assert engine.step() == []
    engine.release(range(0, len(PROMPTS), 2))
    found: list[Generation] = []
    while not engine.idle:
        found += engine.step()
    assert sorted(one.request_id for one in found) == list(range(1, len(PROMPTS), 2))
    expected = run(tiny_model(FAMILY), texts())
    for one in found:
        assert one.token_ids == expected[one.request_id].token_ids


def passes(card: Any, requests: list[Request], plan: Plan) -> list[dict[str, int]]:
    """What each of them counts."""
    model = tiny_model(FAMILY).to("cuda")
    static = StaticEngine(model, plan, end_ids=(), pad_id=0)
    engine = PackedEngine(model, plan, end_ids=(), static=static, window=None)
    engine.admit(requests)
    found = []
    while not engine.idle:
        before = card.counts()
        engine.step()
        found.append({name: count - before.get(name, 0) for name, count in card.counts().items()})
    return found


def test_scores_and_states_of_a_label_batch_come_in_one_transfer(card: Any) -> None:
    """64 documents and 77 labels."""
    torch.manual_seed(0)
    tree = tuple(tuple(torch.randint(3, 190, (3,)).tolist()) for _ in range(77))
    plan = dataclasses.replace(PLAN, max_batch_rows=64, prefill_chunk_tokens=64 * 300, batch_tokens=64 * 300)
    asked = [
        Request(number, ids, Score(tree, features=True))
        for number, ids in enumerate(prompts((20,) * 64, seed=7))
    ]
    first, *others = passes(card, asked, plan)
    assert first["non_blocking copies from the card"] == 1
    assert first.get("waiting copies from the card", 0) == 0
    for step in others:
        assert step["non_blocking copies from the card"] == step.get("waiting copies from the card", 0) == 0


def test_a_pass_that_decodes_sends_its_tokens_once_and_the_next_does_not_wait_for_them(card: Any) -> None:
    first, second, *middle, last = passes(
        card, texts(), dataclasses.replace(PLAN, max_batch_rows=len(PROMPTS))
    )
    # one more than there are tokens: each is read while the next pass is under way
    assert len(middle) + 3 == NEW_TOKENS + 1
    assert first.get("host waits: event", 0) == last["non_blocking copies from the card"] == 0
    for step in (second, *middle):
        assert step["non_blocking copies from the card"] == step["host waits: event"] == 1
        assert step.get("waiting copies from the card", 0) == 0


def test_norms_and_rotary_embedding_are_few_launches(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(FAMILY).to("cuda")
    family = sys.modules[type(model).__module__]
    rotate = family.apply_rotary_pos_emb  # another test of this process may have replaced it
    monkeypatch.setattr(family, "apply_rotary_pos_emb", getattr(rotate, "library", rotate))
    ids = torch.tensor([PROMPTS[1]], device="cuda")

    def counted() -> tuple[int, torch.Tensor]:
        before = card.counts()["launches"]
        with torch.inference_mode():
            logits = model(ids).logits
        return card.counts()["launches"] - before, logits.cpu()

    plainly, expected = counted()
    assert fuse(model) == "13 norms, rotary embedding"
    fewer, found = counted()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    # each norm one launch instead of five, each layer's rotary embedding three instead of ten
    assert plainly - fewer >= 13 * 4 + 3 * 7 - 2
