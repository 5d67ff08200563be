"""How the next token is chosen from a row's logits: greedy, or sampled with a generator of the row's own.

Each row draws from a ``torch.Generator`` on the CPU seeded with its own seed, one uniform number a token, so
that neither the device nor the other rows of the batch change what it draws.
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

    def choose(self, logits: torch.Tensor) -> int:
        """A token id from ``logits`` (vocabulary,): temperature, then the ``top_k`` best, then the fewest
        that reach ``top_p``.
        """
        ordered, tokens = _best_first(logits.detach().to("cpu", torch.float32), self._sampling.top_k)
        cumulative = torch.softmax(ordered / self._sampling.temperature, dim=-1, dtype=torch.float64).cumsum(
            -1
        )
        kept = (
            1 + int(torch.searchsorted(cumulative, self._sampling.top_p))
            if self._sampling.top_p < 1
            else cumulative.numel()
        )
        cumulative = cumulative[:kept]
        point = float(torch.rand((), generator=self._generator, dtype=torch.float64)) * float(cumulative[-1])
        index = min(int(torch.searchsorted(cumulative, point, right=True)), cumulative.numel() - 1)
        return int(tokens[index])

    def skip(self, tokens: int) -> None:
        """Draw what ``tokens`` chosen earlier had drawn."""
        for _ in range(tokens):
            torch.rand((), generator=self._generator, dtype=torch.float64)


def sampler_for(sampling: Sampling | None) -> TokenSampler | None:
    """A sampler, or None where the choice is greedy (no sampling, or a temperature of zero)."""
    if sampling is None or sampling.temperature <= 0 or not math.isfinite(sampling.temperature):
        return None
    return TokenSampler(sampling)


def _best_first(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    if 0 < top_k < logits.numel():
        best = torch.topk(logits, top_k, sorted=True)
        return best.values, best.indices
    ordered = torch.sort(logits, descending=True, stable=True)
    return ordered.values, ordered.indices
