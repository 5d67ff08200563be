"""Sampling: seeded, bounded by top_k and top_p, distributed as asked."""

from __future__ import annotations

from dataclasses import replace

import torch

from pipeline.engine.sampling.sampler import TokenSampler, chosen, sampler_for
from pipeline.records import Sampling

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
RECORDED = [89, 89, 77, 58, 249, 238, 89, 270]


def drawn(sampling: Sampling, count: int = 400) -> list[int]:
    sampler = TokenSampler(sampling)
    return [sampler.choose(LOGITS) for _ in range(count)]


def test_same_seed_same_tokens_other_seed_others() -> None:
    assert drawn(Sampling(1.0, seed=3)) == drawn(Sampling(1.0, seed=3))
    assert drawn(Sampling(1.0, seed=3)) != drawn(Sampling(1.0, seed=4))


def test_shares_follow_the_probabilities() -> None:
    tokens = drawn(Sampling(1.0, seed=1), 4000)
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert abs(tokens.count(token) / 4000 - share) < 0.03


def test_temperature_sharpens() -> None:
    tokens = drawn(Sampling(0.5, seed=1), 4000)
    assert abs(tokens.count(0) / 4000 - 0.25 / 0.365) < 0.03


def test_top_k_and_top_p_cut_the_tail() -> None:
    assert set(drawn(Sampling(1.0, top_k=2))) == {0, 1}
    assert set(drawn(Sampling(1.0, top_p=0.79))) == {0, 1}
    assert set(drawn(Sampling(1.0, top_p=0.81))) == {0, 1, 2}
    assert set(drawn(Sampling(1.0, top_p=0.01))) == {0}


def test_zero_temperature_is_greedy() -> None:
    assert sampler_for(Sampling(0.0)) is None
    assert sampler_for(None) is None
    assert sampler_for(Sampling(0.7)) is not None


def test_rows_of_one_manner_are_chosen_together_as_each_alone() -> None:
    torch.manual_seed(0)
    logits = (torch.randn(6, 500) * 3).bfloat16().float()  # with ties
    for manner in (Sampling(0.7), Sampling(1.0, 0.9), Sampling(1.3, 0.99, 40), Sampling(1.0, 1.0, 3)):
        samplers = [[TokenSampler(replace(manner, seed=row)) for row in range(len(logits))] for _ in range(2)]
        alone = [sampler.choose(row) for sampler, row in zip(samplers[0], logits, strict=True)]
        draws = torch.tensor([sampler.draw() for sampler in samplers[1]], dtype=torch.float64)
        assert chosen(logits, draws, samplers[1][0].manner).tolist() == alone


def test_the_same_seed_draws_the_tokens_that_it_always_drew() -> None:
    """A run directory goes on with the texts that it began."""
    torch.manual_seed(0)
    logits = torch.randn(300)
    sampler = TokenSampler(Sampling(0.8, 0.95, 50, seed=7))
    assert [sampler.choose(logits) for _ in range(8)] == RECORDED
