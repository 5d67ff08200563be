"""The next tokens of many rows, chosen where their logits are, without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from pipeline.engine.sampling.sampler import TokenSampler, chosen
from pipeline.engine.transfers import sent
from pipeline.records import Sampling


def choose(
    logits: torch.Tensor, samplers: Iterable[tuple[int, TokenSampler]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(largest logits, token ids), both (rows,), of float32 ``logits`` (rows, vocabulary): the likeliest
    token of a row, or what its sampler draws, which are given as (row, sampler).

    The largest is NaN or infinite when any logit is NaN or +inf, or all are -inf.
    """
    best, tokens = logits.max(dim=-1)
    for manner, (rows, draws) in _by_manner(samplers).items():
        places = sent(rows, torch.long, logits.device)
        points = sent(draws, torch.float64, logits.device)
        tokens = tokens.index_copy(0, places, chosen(logits.index_select(0, places), points, manner))
    return best, tokens


def _by_manner(
    samplers: Iterable[tuple[int, TokenSampler]],
) -> dict[Sampling, tuple[Sequence[int], Sequence[float]]]:
    """Rows that are chosen for together, and what each draws."""
    groups: dict[Sampling, tuple[list[int], list[float]]] = {}
    for row, sampler in samplers:
        rows, draws = groups.setdefault(sampler.manner, ([], []))
        rows.append(row)
        draws.append(sampler.draw())
    return dict(groups)
