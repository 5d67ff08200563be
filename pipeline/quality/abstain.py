"""When to answer: a threshold on the probability, from a target accuracy, so that the target is met with a
stated confidence.

Thresholds are tested from demanding to lax by fixed-sequence testing (Angelopoulos et al., "Learn then Test:
Calibrating Predictive Algorithms to Achieve Risk Control", 2021): the test of a threshold asks whether the
accuracy of what it answers could be below the target, by the exact binomial lower bound (Clopper and Pearson,
1934); the first threshold that fails ends the search, and the last that passed is taken. Because the order is
fixed by the probabilities alone and the search ends at the first failure, the chance of taking a threshold
that misses the target is at most 1 - confidence, however many were tested.

The probabilities must be those of cross-validation: a calibrator is too sure of the documents that it was
fitted on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipeline.errors import UsageError
from pipeline.quality.metrics import Bools, CoveragePoint, coverage_curve
from pipeline.quality.scores import Floats, extra

CONFIDENCE = 0.8
_FIRST_COVERAGE = 0.25
_STEP_COVERAGE = 0.05


@dataclass(frozen=True, slots=True)
class Threshold:
    """Answers below ``value`` are abstained from; None where no threshold qualifies: then everything is.

    ``coverage`` and ``accuracy`` are those on the gold set by cross-validation, ``lower_bound`` that of the
    accuracy at ``confidence``.
    """

    value: float | None
    target_accuracy: float
    confidence: float
    gold: int
    answered: int
    coverage: float
    accuracy: float
    lower_bound: float
    sentence: str


def choose_threshold(
    confidences: Floats, right: Bools, target_accuracy: float, confidence: float = CONFIDENCE
) -> Threshold:
    """The least threshold that fixed-sequence testing allows; ``confidences`` and ``right``, (gold
    documents,), are of cross-validation.

    Raises UsageError for a target or a confidence that is not between 0 and 1.
    """
    for name, value in (("target_accuracy", target_accuracy), ("confidence", confidence)):
        if not 0 < value < 1:
            raise UsageError(f"{name} {value} is not between 0 and 1")
    taken: CoveragePoint | None = None
    bound = 0.0
    for point in _sequence(coverage_curve(confidences, right), target_accuracy, confidence):
        reached = lower_bound(round(point.accuracy * point.answered), point.answered, confidence)
        if reached < target_accuracy:
            break
        taken, bound = point, reached
    if taken is None:
        return Threshold(
            None,
            target_accuracy,
            confidence,
            len(right),
            0,
            0.0,
            0.0,
            0.0,
            _none(len(right), target_accuracy, confidence),
        )
    sentence = (
        f"answers below probability {taken.threshold:.3f} are abstained from: by cross-validation on "
        f"{len(right):,} gold documents "
        f"the others, {taken.coverage:.0%}, are right in {taken.accuracy:.1%}, at least {bound:.1%} with "
        f"confidence {confidence:.0%} "
        f"(target {target_accuracy:.1%})"
    )
    return Threshold(
        taken.threshold,
        target_accuracy,
        confidence,
        len(right),
        taken.answered,
        taken.coverage,
        taken.accuracy,
        bound,
        sentence,
    )


def lower_bound(successes: int, trials: int, confidence: float) -> float:
    """One-sided Clopper-Pearson bound: with ``confidence`` the true rate is at least this. 0 where nothing
    succeeded.
    """
    if successes == 0:
        return 0.0
    return float(extra("scipy.stats").beta.ppf(1 - confidence, successes, trials - successes + 1))


def least_gold(target_accuracy: float, confidence: float) -> int:
    """How many documents, all right, are needed at least before any threshold can qualify: ln(1 - confidence)
    / ln(target).
    """
    return math.ceil(math.log(1 - confidence) / math.log(target_accuracy) - 1e-9)


def _sequence(curve: list[CoveragePoint], target_accuracy: float, confidence: float) -> list[CoveragePoint]:
    """Which thresholds are tested, in order. Chosen by how many documents they answer, never by how many
    answers are right.

    The first answers a quarter of the gold set, or what the bound needs at least, doubled so that one wrong
    answer does not end the search; each next one about a twentieth more.
    """
    total = curve[-1].answered if curve else 0
    first = min(total, max(math.ceil(_FIRST_COVERAGE * total), 2 * least_gold(target_accuracy, confidence)))
    step = max(1, round(_STEP_COVERAGE * total))
    tested: list[CoveragePoint] = []
    for point in curve:
        if point.answered >= (tested[-1].answered + step if tested else first) or (
            tested and point is curve[-1]
        ):
            tested.append(point)
    return tested


def _none(gold: int, target_accuracy: float, confidence: float) -> str:
    least = least_gold(target_accuracy, confidence)
    shown = (
        f"no threshold reaches an accuracy of {target_accuracy:.1%} with confidence {confidence:.0%} "
        f"on {gold:,} gold documents"
    )
    if gold < least:
        return f"{shown}: at least {least} are needed, all of them right; all documents are abstained from"
    return f"{shown}: all documents are abstained from; a larger gold set or a lower target may help"


def abstains(confidences: Floats, threshold: float | None) -> Bools:
    """True where an answer of this probability is not given; everywhere without a threshold that
    qualifies.
    """
    if threshold is None:
        return np.ones(len(confidences), dtype=np.bool_)
    found: Bools = confidences < threshold
    return found
