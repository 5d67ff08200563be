"""How the next token is chosen from a row's logits: greedy, or sampled with a generator of the row's own.

Each row draws from a ``torch.Generator`` on the CPU seeded with its own seed, one uniform number a token, so
that neither the device nor the other rows of the batch change what it draws. What a draw means is computed
where the logits are, for many rows at once, without waiting for the device.
"""

from __future__ import annotations

import math

import torch

from pipeline.records import Sampling


class TokenSampler:
    """Draws the tokens of one row."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator = torch.Generator(device="cpu").manual_seed(sampling.seed % 2**63)

    @property
    def manner(self) -> Sampling:
        """Temperature, ``top_k`` and ``top_p``: rows of one manner can be chosen for together."""
        return Sampling(self._sampling.temperature, self._sampling.top_p, self._sampling.top_k)

    def draw(self) -> float:
        """The next number in [0, 1)."""
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))

    def choose(self, logits: torch.Tensor) -> int:
        """A token id from ``logits`` (vocabulary,)."""
        draws = torch.tensor([self.draw()], dtype=torch.float64, device=logits.device)
        return int(chosen(logits.detach()[None].float(), draws, self.manner))

    def skip(self, tokens: int) -> None:
        """Draw what ``tokens`` chosen earlier had drawn."""
        for _ in range(tokens):
            self.draw()


def sampler_for(sampling: Sampling | None) -> TokenSampler | None:
    """A sampler, or None where the choice is greedy (no sampling, or a temperature of zero)."""
    if sampling is None or sampling.temperature <= 0 or not math.isfinite(sampling.temperature):
        return None
    return TokenSampler(sampling)


def chosen(logits: torch.Tensor, draws: torch.Tensor, manner: Sampling) -> torch.Tensor:
    """Token ids (rows,) from float32 ``logits`` (rows, vocabulary): temperature, then the ``top_k`` best,
    then the fewest that reach ``top_p``; among them the one at ``draws`` (rows,) of their cumulated
    probability.
    """
    ordered, tokens = _best_first(logits, manner.top_k)
    cumulative = torch.softmax(ordered / manner.temperature, dim=-1, dtype=torch.float64).cumsum(-1)
    last = torch.full_like(draws, cumulative.shape[-1] - 1, dtype=torch.long)[:, None]
    if manner.top_p < 1:
        enough = torch.full_like(draws, manner.top_p)[:, None]
        last = torch.minimum(torch.searchsorted(cumulative, enough), last)
    points = draws[:, None] * cumulative.gather(-1, last)
    places = torch.minimum(torch.searchsorted(cumulative, points, right=True), last)
    return tokens.gather(-1, places)[:, 0]


def _best_first(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    if 0 < top_k < logits.shape[-1]:
        best = torch.topk(logits, top_k, sorted=True)
        return best.values, best.indices
    ordered = torch.sort(logits, descending=True, stable=True)
    return ordered.values, ordered.indices
