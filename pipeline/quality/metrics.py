"""How good answers are: accuracy, macro-F1, per-label table, confusion matrix, calibration error, curves;
with bootstrap intervals.

Everything here takes label numbers and probabilities of the documents that have a gold label, in any order.
Predictions of -1 are abstentions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.quality.scores import Floats, Ints

BINS = 10
"""Bins of equal width over [0, 1] for the calibration error and the reliability curve."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the bounds of its percentile bootstrap interval (Efron, 1979) at ``level``."""

    value: float
    low: float
    high: float
    level: float = 0.95


@dataclass(frozen=True, slots=True)
class LabelQuality:
    """One label's row of the table. Precision is None where it was never predicted, recall where it never
    occurred.
    """

    label: str
    gold: int
    predicted: int
    right: int

    @property
    def precision(self) -> float | None:
        """Share of its predictions that are right."""
        return self.right / self.predicted if self.predicted else None

    @property
    def recall(self) -> float | None:
        """Share of its documents that were found."""
        return self.right / self.gold if self.gold else None

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, 0 where nothing is right."""
        return 2 * self.right / (self.gold + self.predicted) if self.right else 0.0


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of the reliability curve: how sure the answers in it are on average, and how many of them are
    right.
    """

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class CoveragePoint:
    """Answering only where the probability is at least ``threshold``: the share answered, and the accuracy of
    the answers.
    """

    threshold: float
    answered: int
    coverage: float
    accuracy: float


def accuracy(predicted: Ints, gold: Ints) -> float:
    """Share of documents answered right; an abstention is not right. 0 for no documents."""
    return float((predicted == gold).mean()) if len(gold) else 0.0


def confusion(predicted: Ints, gold: Ints, label_count: int) -> Ints:
    """Counts (labels, labels + 1): rows are gold, columns predictions, the last column abstentions."""
    table = np.zeros((label_count, label_count + 1), dtype=np.int64)
    np.add.at(table, (gold, np.where(predicted < 0, label_count, predicted)), 1)
    return table


def per_label(predicted: Ints, gold: Ints, labels: Sequence[str]) -> list[LabelQuality]:
    """A row a label, in the labels' order."""
    table = confusion(predicted, gold, len(labels))
    return [
        LabelQuality(label, int(table[place].sum()), int(table[:, place].sum()), int(table[place, place]))
        for place, label in enumerate(labels)
    ]


def macro_f1(predicted: Ints, gold: Ints, label_count: int) -> float:
    """Mean F1 over the labels that occur in gold or predictions (Opitz and Burst, 2019, first variant)."""
    table = confusion(predicted, gold, label_count)
    right = np.diagonal(table)
    both = table.sum(axis=1) + table[:, :label_count].sum(axis=0)
    return float((2 * right[both > 0] / both[both > 0]).mean()) if both.any() else 0.0


def reliability(confidence: Floats, right: Bools) -> list[Bin]:
    """The reliability curve over BINS bins of equal width; empty bins are left out. A confidence on an edge
    belongs to the lower bin.
    """
    places = _bins(confidence)
    return [
        Bin(
            place / BINS,
            (place + 1) / BINS,
            int((places == place).sum()),
            float(confidence[places == place].mean()),
            float(right[places == place].mean()),
        )
        for place in np.unique(places).tolist()
    ]


def expected_calibration_error(confidence: Floats, right: Bools) -> float:
    """Mean gap between confidence and accuracy over BINS bins of equal width, weighted by their documents.

    Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning" (AAAI
    2015). For few documents it is above 0 even for perfect probabilities: about 0.1 for 100 of them. 0 for no
    documents.
    """
    if not len(confidence):
        return 0.0
    gaps = np.bincount(_bins(confidence), weights=confidence - right, minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def coverage_curve(confidence: Floats, right: Bools) -> list[CoveragePoint]:
    """A point for every distinct confidence as threshold, from the most demanding to the least."""
    order = np.argsort(-confidence, kind="stable")
    ranked, hits = confidence[order], np.cumsum(right[order])
    last = (
        np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
        if len(ranked)
        else np.array([], dtype=np.int64)
    )
    return [
        CoveragePoint(
            float(ranked[place]),
            int(place) + 1,
            (int(place) + 1) / len(ranked),
            float(hits[place]) / (int(place) + 1),
        )
        for place in last.tolist()
    ]


def bootstrap(
    statistic: Callable[[Ints], float],
    count: int,
    *,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
) -> Interval:
    """Percentile interval of ``statistic`` over documents drawn anew with replacement; it gets the numbers of
    those drawn, (count,).
    """
    value = statistic(np.arange(count))
    if count == 0:
        return Interval(value, value, value, level)
    generator = np.random.default_rng(seed)
    drawn = [statistic(generator.integers(0, count, count)) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), level)


def _bins(confidence: Floats) -> Ints:
    places: Ints = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    return places
