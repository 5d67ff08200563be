"""Scores of continuations: exact, from one reading of the prompt, which can be asked again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pipeline.engine.kv.cache import tensors
from pipeline.engine.model.forward import Forward
from pipeline.engine.sampling.hidden_state import MOST_FEATURES, packed
from pipeline.engine.static.generate import PassLimits, prefill
from pipeline.engine.static.score import score, score_rows
from pipeline.records import Score
from tests.equivalence.equality import reference_features, reference_scores
from tests.equivalence.families import QUICK, prompts, tiny_model

LENGTHS = (50, 31, 6)
# Shared first tokens, one the beginning of another, single tokens, the same twice.
CONTINUATIONS = ((9, 10), (9, 10, 11), (9,), (12,), (12, 13, 14, 15, 16, 17), (9, 10))


def settings(score_rows: int = 64, batch_tokens: int = 10_000, chunk: int = 10_000) -> PassLimits:
    return PassLimits(chunk, score_rows, batch_tokens, "device", pad_id=0)


@pytest.mark.parametrize(
    "limits", [settings(), settings(score_rows=1), settings(batch_tokens=120), settings(chunk=33)]
)
@pytest.mark.parametrize("family", QUICK)
def test_equal_to_each_continuation_on_its_own(family: str, limits: PassLimits) -> None:
    model = tiny_model(family)
    asks = [Score(CONTINUATIONS), Score(CONTINUATIONS[:3]), Score(((40, 41),))]
    found = score(Forward(model), prompts(LENGTHS), asks, limits)
    for prompt, ask, (scores, _) in zip(prompts(LENGTHS), asks, found, strict=True):
        expected = torch.tensor(reference_scores(model, prompt, ask.continuations))
        torch.testing.assert_close(torch.tensor(scores), expected, atol=1e-4, rtol=0)


def test_probabilities_of_all_tokens_sum_to_one() -> None:
    model = tiny_model("llama (GQA)")
    [(scores, _)] = score(
        Forward(model), prompts((20,)), [Score(tuple((token,) for token in range(199)))], settings()
    )
    assert sum(torch.tensor(scores).exp()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("family", [*QUICK, "qwen3_next (hybrid)", "mamba2 (recurrent)"])
@pytest.mark.parametrize("placement", ["device", "offloaded"])
def test_the_documents_cache_is_not_changed(family: str, placement: Any) -> None:
    forward = Forward(tiny_model(family))
    limits = PassLimits(10_000, 64, 10_000, placement, pad_id=0)
    with torch.inference_mode():
        rows = prefill(forward, prompts((40, 40)), limits)
        before = [tensor.clone() for tensor in tensors(rows.cache)]
        first = score_rows(forward, rows, [Score(CONTINUATIONS)] * 2, limits)
        after = list(tensors(rows.cache))
        second = score_rows(forward, rows, [Score(CONTINUATIONS)] * 2, limits)
    assert len(before) == len(after) > 0
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert first == second


@pytest.mark.parametrize("family", [*QUICK, "qwen3_next (hybrid)", "mamba2 (recurrent)"])
@pytest.mark.parametrize("limit", [9, 100])
def test_features_are_what_the_head_is_given_at_the_last_token(family: str, limit: int) -> None:
    model: Any = tiny_model(family)
    asks = [Score(((7, 8),), features=True), Score(((7, 8),))]
    (_, wanted), (_, unwanted) = score(Forward(model), prompts((20, 20)), asks, settings(chunk=limit))
    assert unwanted == b""
    np.testing.assert_allclose(
        np.frombuffer(wanted, "<f2"), reference_features(model, prompts((20,))[0]).numpy(), atol=2e-3
    )


def test_wide_states_are_sketched_and_broken_ones_left_out() -> None:
    rows = torch.randn(2, 8192, generator=torch.Generator().manual_seed(0))
    sketches = [np.frombuffer(packed(row), "<f2").astype(np.float64) for row in (*rows, rows.sum(dim=0))]
    assert {len(sketch) for sketch in sketches} == {MOST_FEATURES}
    assert np.linalg.norm(sketches[0]) == pytest.approx(float(rows[0].norm()), rel=0.1)
    # linear: what a probe needs
    np.testing.assert_allclose(sketches[0] + sketches[1], sketches[2], atol=0.05)
    assert packed(torch.tensor([1.0, float("nan")])) == b""


def test_single_tokens_need_no_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Forward(tiny_model("llama (GQA)"))
    passes: list[tuple[int, ...]] = []
    right = Forward.__call__

    def counted(self: Forward, ids: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        passes.append(tuple(ids.shape))
        return right(self, ids, *rest, **named)

    monkeypatch.setattr(Forward, "__call__", counted)
    score(forward, prompts((20, 20)), [Score(((5,), (6,)))] * 2, settings())
    assert passes == [(2, 20)]
    score(forward, prompts((20, 20)), [Score(((5,), (6, 7), (6, 8, 9)))] * 2, settings())
    assert passes[1:] == [(2, 20), (4, 2)]


def test_logits_that_are_no_numbers_are_an_error() -> None:
    model = tiny_model("llama (GQA)")
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")
    [result] = score(Forward(model), prompts((20,)), [Score(((7, 8),))], settings())
    assert result[0] == "non_finite_logits"
