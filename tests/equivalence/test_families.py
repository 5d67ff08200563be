"""Every faster path gives the text and the scores of the plain one: batched, padded, chunked, offloaded, on
many families.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch

from pipeline.engine.kv.cache import needs_equal_lengths
from pipeline.engine.model.forward import Forward
from pipeline.engine.static.engine import StaticEngine
from pipeline.records import Decode, Generation, Plan, Request, Score
from tests.equivalence.equality import (
    NotEqual,
    Reference,
    assert_equal_texts,
    reference_scores,
    reference_text,
)
from tests.equivalence.families import FAMILIES, QUICK, RECURRENT, prompts, tiny_model
from tests.tiers import quick

LENGTHS = (3, 9, 17, 30, 30, 47, 61, 61, 80)
END_IDS = tuple(range(3, 15))  # several, so that rows end at different steps and the batch is compacted
NEW_TOKENS = 40  # under the 48 that a loop must cover
CONTINUATIONS = ((11,), (11, 12), (11, 12, 13), (20, 21, 22, 23, 24), (30, 2), (31, 2))

WIDE = Plan("float32", "none", "device", "instructions_first", 512, 9, 10_000, 10_000, 1)
PATHS = {
    "one by one": dataclasses.replace(WIDE, max_batch_rows=1),
    "one padded batch": WIDE,
    "groups joined": dataclasses.replace(WIDE, prefill_chunk_tokens=130),
    "small chunks": dataclasses.replace(WIDE, prefill_chunk_tokens=16),
    "small batches": dataclasses.replace(WIDE, batch_tokens=300),
    "offloaded": dataclasses.replace(WIDE, placement="offloaded", prefill_chunk_tokens=130),
    "offloaded in small chunks": dataclasses.replace(WIDE, placement="offloaded", prefill_chunk_tokens=16),
    "disk": dataclasses.replace(WIDE, placement="disk", prefill_chunk_tokens=130),
    "disk in small chunks": dataclasses.replace(WIDE, placement="disk", prefill_chunk_tokens=16),
}
_SOME_PATHS = quick(
    PATHS, "one by one", "one padded batch", "small batches", "offloaded in small chunks", "disk"
)
_MARKED = [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in FAMILIES]
families = pytest.mark.parametrize("family", _MARKED)
padded_families = pytest.mark.parametrize(
    "family", [case for case in _MARKED if case.values[0] not in RECURRENT]
)


def asked(prefix_tokens: int = 0) -> list[tuple[int, ...]]:
    """The prompts, behind a beginning of so many tokens that they share."""
    beginning = prompts((prefix_tokens,))[0] if prefix_tokens else ()
    return [(*beginning, *prompt) for prompt in prompts(LENGTHS)]


@functools.cache
def made(family: str, prefix_tokens: int = 0) -> tuple[Any, list[Reference], list[list[float]]]:
    """A model of the family, and what it says in the plain way, made once a process: it takes longer than
    most of what is held against it.
    """
    model, sent = tiny_model(family), asked(prefix_tokens)
    texts = [reference_text(model, prompt, END_IDS, NEW_TOKENS) for prompt in sent]
    return model, texts, [reference_scores(model, prompt, CONTINUATIONS) for prompt in sent]


def run(model: Any, plan: Plan, ask: Decode | Score, lengths: tuple[int, ...] = LENGTHS) -> list[Generation]:
    engine = StaticEngine(model, plan, end_ids=END_IDS, pad_id=0)
    engine.admit([Request(index, prompt, ask) for index, prompt in enumerate(prompts(lengths))])
    done: list[Generation] = []
    while not engine.idle:
        done += engine.step()
    assert [generation.error for generation in done] == [None] * len(lengths)
    return sorted(done, key=lambda generation: generation.request_id)


@families
def test_references_are_worth_comparing(family: str) -> None:
    """Texts differ from each other and use many tokens, and few of their steps are undecided."""
    texts = made(family)[1]
    assert len({text.tokens for text in texts}) >= len(texts) - 1
    assert len({token for text in texts for token in text.tokens}) >= 25
    margins = [step.margin for text in texts for step in text.steps]
    assert sum(margin < 1e-3 for margin in margins) <= len(margins) // 50
    assert sorted(margins)[len(margins) // 2] > 0.05


@families
@pytest.mark.parametrize("path", _SOME_PATHS)
def test_same_texts(family: str, path: str, record_property: Any) -> None:
    model, texts, _ = made(family)
    done = run(model, PATHS[path], Decode(NEW_TOKENS))
    near_ties = assert_equal_texts(texts, [generation.token_ids for generation in done])
    record_property("near_ties", near_ties)
    assert near_ties <= 1
    for text, generation in zip(texts, done, strict=True):
        if generation.token_ids == text.tokens:
            assert generation.finish_reason == ("stop" if text.ended else "length")
    assert {generation.placement for generation in done} == {PATHS[path].placement}
    if path != "one by one":
        assert max(generation.batch_rows for generation in done) > 1


@pytest.mark.parametrize("family", ["llama (GQA)", "gpt_neox (MHA)", "falcon (MQA)"])
def test_quantized_caches_give_about_the_same_scores(family: str) -> None:
    """Eight bits a number: another answer now and then, never a wrong row."""
    model, _, scores = made(family)
    done = run(
        model, dataclasses.replace(WIDE, placement="quantized", prefill_chunk_tokens=16), Score(CONTINUATIONS)
    )
    found, expected = torch.tensor([generation.scores for generation in done]), torch.tensor(scores)
    assert found.ne(expected).any()
    assert ((found - expected).abs().mean(dim=0) < 0.25 * expected.std(dim=0)).all()
    assert torch.cdist(found, expected).argmin(dim=1).tolist() == list(range(len(LENGTHS)))


@families
@pytest.mark.parametrize("path", _SOME_PATHS)
def test_same_scores(family: str, path: str) -> None:
    model, _, scores = made(family)
    done = run(model, PATHS[path], Score(CONTINUATIONS))
    found = torch.tensor([generation.scores for generation in done])
    # Chunked and stepwise recurrences add up in another order: measured 2e-4 on scores around -18.
    torch.testing.assert_close(
        found, torch.tensor(scores), atol=1e-3 if family in RECURRENT else 1e-4, rtol=0
    )


@families
def test_which_families_may_be_padded(family: str) -> None:
    model = made(family)[0]
    assert needs_equal_lengths(model.config) == (family in RECURRENT)
    assert Forward(model).equal_lengths == (family in RECURRENT)


def _wrong_mask(
    self: Forward, ids: Any, mask: Any, positions: Any, cache: Any, keep: int = 1
) -> torch.Tensor:
    return _right(self, ids, torch.ones_like(mask), positions, cache, keep)


def _wrong_positions(
    self: Forward, ids: Any, mask: Any, positions: Any, cache: Any, keep: int = 1
) -> torch.Tensor:
    # A shift common to a whole row does not matter to rotary positions; one that starts in the middle of it
    # does.
    return _right(self, ids, mask, positions + (positions >= 5) * (mask[:, :1] == 0), cache, keep)


_right = Forward.__call__


@padded_families
def test_a_mask_that_ignores_padding_is_noticed(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the comparison is sharp enough, on every family, to see the classic mistake of left
    padding.
    """
    model, texts, _ = made(family)
    monkeypatch.setattr(Forward, "__call__", _wrong_mask)
    with pytest.raises(NotEqual):
        assert_equal_texts(
            texts, [generation.token_ids for generation in run(model, WIDE, Decode(NEW_TOKENS))]
        )


@pytest.mark.parametrize("family", QUICK)
def test_wrong_positions_are_noticed(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: position ids of padded rows off by one."""
    model, texts, _ = made(family)
    monkeypatch.setattr(Forward, "__call__", _wrong_positions)
    with pytest.raises(NotEqual):
        assert_equal_texts(
            texts, [generation.token_ids for generation in run(model, WIDE, Decode(NEW_TOKENS))]
        )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_gives_no_nan_in_bfloat16(attention: str) -> None:
    """Columns of padding attend to nothing at all; in half precision that must not poison the real ones.

    ``run`` refuses errors, and logits that are not numbers are one; scores stay near those of each prompt
    alone.
    """
    model = tiny_model("llama (GQA)", torch.bfloat16, attention)
    lengths = (2, 40, 60, 80)
    alone = torch.tensor([reference_scores(model, prompt, CONTINUATIONS) for prompt in prompts(lengths)])
    for plan in (WIDE, PATHS["small chunks"], PATHS["offloaded"]):
        run(model, plan, Decode(8), lengths)
        found = torch.tensor(
            [generation.scores for generation in run(model, plan, Score(CONTINUATIONS), lengths)]
        )
        torch.testing.assert_close(found, alone, atol=0.5, rtol=0.05)
