"""The figures of an evaluated label task: from gold labels, probabilities and answers to counts, curves and
intervals.

``Judged`` is one label a document, ``JudgedSeveral`` any number of them, where each label is a yes/no
decision of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeline.quality import metrics
from pipeline.quality.metrics import Bools
from pipeline.quality.scores import Floats, Ints

CURVE_POINTS = 200
"""More points of a coverage curve than this are thinned out."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Documents with a gold label: ``gold`` and ``predicted`` label numbers (-1: abstained), (documents,),
    probabilities by label.
    """

    gold: Ints
    probabilities: Floats
    predicted: Ints

    def figures(self, labels: Sequence[str]) -> dict[str, Any]:
        """Facts that JSON can hold."""
        confidence = self.probabilities.max(axis=1)
        right = self.probabilities.argmax(axis=1) == self.gold
        answered = int((self.predicted >= 0).sum())
        return {
            "judged": len(self.gold),
            "answered": answered,
            "abstained": len(self.gold) - answered,
            "majority_share": float(np.bincount(self.gold).max() / len(self.gold)),
            "headline": _intervals(self._statistics(len(labels)), len(self.gold)),
            "per_label": [_row(row) for row in metrics.per_label(self.predicted, self.gold, labels)],
            "confusion": metrics.confusion(self.predicted, self.gold, len(labels)).tolist(),
            **_curves(confidence, right, confidence, right),
        }

    def _statistics(self, label_count: int) -> dict[str, Callable[[Ints], float]]:
        """Calibration error is over all documents, by the likeliest label, abstained or not."""
        predicted, gold = self.predicted, self.gold
        confidence, right = self.probabilities.max(axis=1), self.probabilities.argmax(axis=1) == gold
        answered = predicted >= 0
        statistics: dict[str, Callable[[Ints], float]] = {
            "accuracy": lambda drawn: metrics.accuracy(predicted[drawn], gold[drawn]),
            "macro_f1": lambda drawn: metrics.macro_f1(predicted[drawn], gold[drawn], label_count),
            "calibration_error": lambda drawn: metrics.expected_calibration_error(
                confidence[drawn], right[drawn]
            ),
        }
        if not answered.all():
            statistics["coverage"] = lambda drawn: float(answered[drawn].mean())
        if answered.any() and not answered.all():  # of no answers there is no accuracy
            statistics["answered_accuracy"] = lambda drawn: metrics.accuracy(
                predicted[drawn[answered[drawn]]], gold[drawn[answered[drawn]]]
            )
        return statistics


@dataclass(frozen=True, slots=True)
class JudgedSeveral:
    """``gold`` and ``predicted`` yes or no, ``probabilities`` of yes, all (documents, labels); ``answered``,
    (documents,).

    A document that is abstained from has no label predicted, and is never exactly right.
    """

    gold: Bools
    probabilities: Floats
    predicted: Bools
    answered: Bools

    def figures(self, labels: Sequence[str]) -> dict[str, Any]:
        """Facts that JSON can hold. Calibration error and reliability are over all yes/no decisions,
        abstained or not.
        """
        decisions = np.maximum(self.probabilities, 1 - self.probabilities)
        right = (self.probabilities >= 0.5) == self.gold
        answered = int(self.answered.sum())
        counts = zip(
            labels,
            self.gold.sum(axis=0),
            self.predicted.sum(axis=0),
            (self.gold & self.predicted).sum(axis=0),
            strict=True,
        )
        table = [
            metrics.LabelQuality(label, int(gold), int(given), int(both))
            for label, gold, given, both in counts
        ]
        return {
            "judged": len(self.gold),
            "answered": answered,
            "abstained": len(self.gold) - answered,
            "labels_per_document": float(self.gold.sum(axis=1).mean()),
            "headline": _intervals(self._statistics(), len(self.gold)),
            "per_label": [_row(row) for row in table],
            **_curves(decisions.ravel(), right.ravel(), decisions.min(axis=1), right.all(axis=1)),
        }

    def _statistics(self) -> dict[str, Callable[[Ints], float]]:
        gold, predicted, answered = self.gold, self.predicted, self.answered
        decisions, right = (
            np.maximum(self.probabilities, 1 - self.probabilities),
            (self.probabilities >= 0.5) == gold,
        )
        exact = (predicted == gold).all(axis=1) & answered
        statistics: dict[str, Callable[[Ints], float]] = {
            "exact_match": lambda drawn: float(exact[drawn].mean()) if len(drawn) else 0.0,
            "micro_f1": lambda drawn: micro_f1(predicted[drawn], gold[drawn]),
            "macro_f1": lambda drawn: macro_f1(predicted[drawn], gold[drawn]),
            "calibration_error": lambda drawn: metrics.expected_calibration_error(
                decisions[drawn].ravel(), right[drawn].ravel()
            ),
        }
        if not answered.all():
            statistics["coverage"] = lambda drawn: float(answered[drawn].mean())
        if answered.any() and not answered.all():
            statistics["answered_exact_match"] = lambda drawn: (
                float(exact[drawn].sum() / answered[drawn].sum()) if answered[drawn].any() else 0.0
            )
        return statistics


def micro_f1(predicted: Bools, gold: Bools) -> float:
    """F1 over all decisions together; 0 where nothing is right."""
    both = int(predicted.sum() + gold.sum())
    return 2 * int((predicted & gold).sum()) / both if both else 0.0


def macro_f1(predicted: Bools, gold: Bools) -> float:
    """Mean F1 over the labels that occur in gold or predictions."""
    both = predicted.sum(axis=0) + gold.sum(axis=0)
    right = 2 * (predicted & gold).sum(axis=0)
    return float((right[both > 0] / both[both > 0]).mean()) if both.any() else 0.0


def _row(row: metrics.LabelQuality) -> dict[str, Any]:
    return asdict(row) | {"precision": row.precision, "recall": row.recall, "f1": row.f1}


def _intervals(statistics: Mapping[str, Callable[[Ints], float]], count: int) -> dict[str, Any]:
    """The figures with their bootstrap intervals over documents."""
    return {name: asdict(metrics.bootstrap(statistic, count)) for name, statistic in statistics.items()}


def _curves(decisions: Floats, right: Bools, documents: Floats, all_right: Bools) -> dict[str, Any]:
    """Reliability over decisions; coverage and accuracy over documents."""
    curve = metrics.coverage_curve(documents, all_right)
    every = max(1, -(-len(curve) // CURVE_POINTS))
    return {
        "reliability": [asdict(one) for one in metrics.reliability(decisions, right)],
        "coverage_curve": [
            asdict(point)
            for place, point in enumerate(curve)
            if place % every == 0 or place == len(curve) - 1
        ],
    }
