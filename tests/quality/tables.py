"""Score matrices whose truth is known: drawn from a model that states how likely each label is for each
document.
"""

from __future__ import annotations

import numpy as np

from pipeline.quality.scores import Floats, Ints, log_softmax

LABELS = ("world", "sports", "business", "science")


def drawn(
    count: int,
    seed: int,
    *,
    shares: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25),
    bias: tuple[float, ...] = (3.0, 0.0, -2.0, 1.0),
    sharpness: float = 2.0,
) -> tuple[Floats, Ints]:
    """Raw scores (documents, labels) with a bias a label, and the true labels: evidence of ``sharpness`` plus
    noise of size 1.
    """
    generator = np.random.default_rng(seed)
    gold = generator.choice(len(shares), size=count, p=shares)
    evidence = generator.normal(size=(count, len(shares)))
    evidence[np.arange(count), gold] += sharpness
    return log_softmax(evidence + np.array(bias)) - 5.0, gold.astype(np.int64)


def gold_of(gold: Ints, rows: range | list[int]) -> dict[int, str]:
    """The gold set that names these rows."""
    return {row: LABELS[gold[row]] for row in rows}
