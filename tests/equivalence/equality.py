"""What it means that two texts are equal, and the plain way to make one: a single document, the full prompt,
no batch.

Equal means: the same tokens, or a first difference at a step where the reference's two best logits are closer
than a bound (1e-3 in float32; wider, and stated, in lower precision). Such near-ties are counted, never
silently passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

FLOAT32_BOUND = 1e-3


@dataclass(frozen=True)
class Step:
    """One step of the reference: the token chosen and how far its logit is above the second best."""

    token: int
    margin: float


@dataclass(frozen=True)
class Reference:
    """Steps of one text, the one that chose the end token included."""

    steps: tuple[Step, ...]
    ended: bool

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(step.token for step in self.steps[: len(self.steps) - self.ended])


def reference_text(
    model: Any, prompt: Sequence[int], end_ids: Collection[int], max_new_tokens: int, cached: bool = False
) -> Reference:
    """Greedy text of one prompt. Recomputes the whole sequence at each step, unless ``cached`` lets the model
    keep its own cache.
    """
    steps: list[Step] = []
    sequence = list(prompt)
    fed, cache = sequence, None
    with torch.no_grad():
        while len(steps) < max_new_tokens and not (steps and steps[-1].token in end_ids):
            if cached:
                output = model(torch.tensor([fed]), cache=cache, use_cache=True)
                cache = output.cache
            else:
                output = model(torch.tensor([sequence]), use_cache=False)
            best = output.logits[0, -1].float().topk(2)
            steps.append(Step(int(best.indices[0]), float(best.values[0] - best.values[1])))
            fed = [steps[-1].token]
            sequence = [*sequence, *fed]
    return Reference(tuple(steps), steps[-1].token in end_ids)


def reference_scores(
    model: Any, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
) -> list[float]:
    """Log-probability of each continuation, each computed in one pass of its own over prompt and
    continuation.
    """
    scores = []
    with torch.no_grad():
        for continuation in continuations:
            logits = model(torch.tensor([[*prompt, *continuation]]), use_cache=False).logits[0].float()
            log_probabilities = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
            scores.append(
                float(sum(log_probabilities[index, token] for index, token in enumerate(continuation)))
            )
    return scores


def reference_features(model: Any, prompt: Sequence[int]) -> torch.Tensor:
    """What the model's head is given at the last token of ``prompt``, in one pass of its own: (hidden,)."""
    seen: list[torch.Tensor] = []
    handle = model.get_output_embeddings().register_forward_pre_hook(
        lambda _module, inputs: seen.append(inputs[0])
    )
    with torch.no_grad():
        model(torch.tensor([prompt]), use_cache=False)
    handle.remove()
    return seen[-1][0, -1].float()


class NotEqual(AssertionError):
    """Two texts differ at a step where the reference was not undecided."""


def assert_equal_texts(
    references: Sequence[Reference], candidates: Sequence[Sequence[int]], bound: float = FLOAT32_BOUND
) -> int:
    """Hold each candidate (token ids without the end token) to its reference. Returns how many differ at a
    near-tie.
    """
    pairs = enumerate(zip(references, candidates, strict=True))
    return sum(
        _near_tie(index, reference, tuple(candidate), bound) for index, (reference, candidate) in pairs
    )


def _near_tie(index: int, reference: Reference, candidate: tuple[int, ...], bound: float) -> bool:
    if candidate == reference.tokens:
        return False
    pairs = zip(reference.tokens, candidate, strict=False)
    shorter = min(len(candidate), len(reference.tokens))
    step = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)
    if step >= len(reference.steps):
        raise NotEqual(
            f"text {index} goes on for {len(candidate) - step} tokens after the reference reached its limit"
        )
    margin = reference.steps[step].margin
    if margin >= bound:
        raise NotEqual(
            f"text {index} differs at step {step}, where the reference leads by {margin:.4g} (bound "
            f"{bound:g})"
        )
    return True
