"""Calibration over the batch: one offset a label, from the scores of all documents and an assumption about
class shares.

No label of any document is needed, but an assumption is. Without ``expected_shares``: that the labels are
about equally common. With them: that the shares are the ones given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.errors import UsageError
from pipeline.quality.scores import Floats, blocks, normalized

_ENOUGH_ROWS = 100_000
_STEPS = 100
_CLOSE = 1e-6


def mean_offsets(scores: Floats) -> Floats:
    """Minus each label's mean log-probability over the documents, shape (labels,).

    Batch calibration after Zhou et al., "Batch Calibration: Rethinking Calibration for In-Context Learning
    and Prompt Engineering" (ICLR 2024), with the mean taken over log-probabilities instead of probabilities.
    """
    total = np.zeros(scores.shape[1])
    for block in blocks(*scores.shape):
        total += normalized(scores[block]).sum(axis=0)
    offsets = -total / max(1, len(scores))
    centred: Floats = offsets - offsets.mean()
    return centred


def share_offsets(scores: Floats, shares: Floats) -> Floats:
    """Offsets (labels,) with which the mean predicted probability of every label is its share, to 1e-6.

    They maximize the concave function sum_k shares_k o_k - mean_i logsumexp_k(scores_ik + o_k), whose
    gradient is the shares minus the mean predicted probabilities; found by Newton's and, where these do not
    climb, Sinkhorn's steps. Beyond 100,000 documents every n-th one is used.
    """
    rows = normalized(scores[:: math.ceil(max(1, len(scores)) / _ENOUGH_ROWS)])
    offsets = np.log(shares) - np.log(np.exp(rows).mean(axis=0))
    height, gradient, curvature, reached = _dual(rows, offsets, shares)
    for _ in range(_STEPS):
        if np.abs(gradient).max() < _CLOSE:
            break
        # The function is flat along a constant added to all offsets; the damping makes the system solvable
        # and is harmless.
        newton = np.linalg.solve(curvature + 1e-9 * np.eye(len(shares)), gradient)
        for length in (1.0, 0.5, 0.25, 0.125):
            found = _dual(rows, offsets + length * newton, shares)
            if found[0] > height:
                offsets = offsets + length * newton
                break
        else:  # Sinkhorn's step climbs always, if slowly: it sets each label right as if it were alone
            offsets = offsets + np.log(shares) - np.log(np.maximum(reached, 1e-12))
            found = _dual(rows, offsets, shares)
        height, gradient, curvature, reached = found
    centred: Floats = offsets - offsets.mean()
    return centred


def _dual(rows: Floats, offsets: Floats, shares: Floats) -> tuple[float, Floats, Floats, Floats]:
    """Value, gradient and negative Hessian of the function of ``share_offsets``, and the mean predicted
    probabilities.
    """
    moved = rows + offsets
    best = moved.max(axis=1, keepdims=True)
    weights = np.exp(moved - best)
    sums = weights.sum(axis=1, keepdims=True)
    predicted = weights / sums
    mean = predicted.mean(axis=0)
    value = float(shares @ offsets - (best + np.log(sums)).mean())
    return value, shares - mean, np.diag(mean) - predicted.T @ predicted / len(rows), mean


def expected(shares: Mapping[str, float], labels: Sequence[str]) -> Floats:
    """``expected_shares`` of a configuration in the labels' order, summing to 1. Raises UsageError when they
    cannot be shares.
    """
    for name in shares:
        if name not in labels:
            raise UsageError(f"expected_shares names {name!r}, which is not a label of the task")
    missing = [label for label in labels if label not in shares]
    if missing:
        raise UsageError(
            f"expected_shares lacks {missing[0]!r}: give the share of every label, {len(labels)} in all"
        )
    values = np.array([float(shares[label]) for label in labels])
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise UsageError(
            "expected_shares must be above 0; a label that cannot occur should be left out of the task's "
            "labels"
        )
    if abs(values.sum() - 1) > 0.01:
        raise UsageError(f"expected_shares add up to {values.sum():.3f}, not to 1")
    normed: Floats = values / values.sum()
    return normed
