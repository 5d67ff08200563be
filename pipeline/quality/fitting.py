"""Calibrators fitted on gold labels: the candidates, and the choice among them by cross-validation on the
gold set alone.

All are linear in the score vector. Features are the batch-calibrated log-probabilities over one common scale,
so that the strengths of regularization below mean the same for every task:

- ``batch``        nothing fitted: the calibration over the batch as it is
- ``temperature``  one number: the batch-calibrated scores times t (Guo et al., "On Calibration of Modern
  Neural Networks", ICML 2017)
- ``vector``       a scale and a bias a label (vector scaling, ibid.), pulled towards ``temperature``
- ``multinomial``  scikit-learn's logistic regression on the whole score vector, pulled towards zero
- ``matrix``       as multinomial, pulled towards ``temperature``: labels with few or no gold documents keep
  the model's own evidence
- ``probe``        as multinomial, on the scores and the model's states, in place of the two above where the
  states were kept

The columns of the evidence are the labels' scores, and behind them the states' coordinates.

The choice is by mean log-loss over stratified folds. What is reported is nested: in every outer fold the
choice is made again without that fold's documents, so no document has a part in its own test, not even
through the choice of a candidate.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from pipeline.quality.scores import Floats, Ints, extra, log_softmax

_ALIKE_DECIMALS = 3
_SCORES_IN_PROBE = 0.3
_TEACHING_ROUNDS = 3
_TEACHING_SHARE = 0.5
_TEACHING_STRENGTH = 0.1
_MATRIX_LABELS = 24
"""Beyond this many labels the candidates with labels x labels numbers are left out: gold sets are too small
for them.
"""


@dataclass(frozen=True, slots=True)
class Linear:
    """Calibrated logits = features @ weights.T + bias; ``weights`` (labels, columns), ``bias`` (labels,)."""

    weights: Floats
    bias: Floats

    def log_probabilities(self, features: Floats) -> Floats:
        """Normalized natural logs, (documents, labels)."""
        return log_softmax(features @ self.weights.T + self.bias)


Fit = Callable[[Floats, Ints], Linear]
"""From features (documents, columns) and label numbers (documents,) to a calibrator."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to calibrate. ``name`` is shown; ``family`` is its part before the strength."""

    family: str
    strength: float | None
    fit: Fit

    @property
    def name(self) -> str:
        """E.g. ``matrix(3)``."""
        return self.family if self.strength is None else f"{self.family}({self.strength:g})"


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen candidate, fitted on all gold documents, and what cross-validation says.

    ``losses`` are each candidate's mean log-loss; ``held_out`` (documents, labels) are the nested
    log-probabilities.
    """

    chosen: str
    calibrator: Linear
    losses: tuple[tuple[str, float], ...]
    held_out: Floats
    folds: int


def candidates(label_count: int, scale: float, *, with_states: bool = False) -> list[Candidate]:
    """What is tried for so many labels. ``scale``: the first columns are batch-calibrated scores divided by
    it.
    """
    identity = Linear(np.eye(label_count) * scale, np.zeros(label_count))
    found = [
        Candidate("batch", None, lambda _features, _gold: identity),
        Candidate("temperature", None, _temperature),
    ]
    found += [Candidate("vector", strength, _pulled(strength, diagonal=True)) for strength in (0.5, 2.0, 8.0)]
    if with_states:
        found = [replace(candidate, fit=_on_scores(candidate.fit, label_count)) for candidate in found]
        found += [
            Candidate("probe", strength, _probe(strength, label_count)) for strength in (0.3, 0.1, 0.03, 0.01)
        ]
    elif label_count <= _MATRIX_LABELS:
        found += [Candidate("multinomial", strength, _multinomial(strength)) for strength in (0.5, 2.0, 8.0)]
        found += [
            Candidate("matrix", strength, _pulled(strength, diagonal=False)) for strength in (0.5, 2.0, 8.0)
        ]
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, fits run on one thread: hundreds of fits of a few hundred numbers, whose threads would only
    wait for each other.

    Measured with two threads on two busy cores: 45 s instead of 3. Only libraries that are loaded already can
    be told.
    """
    for module in ("scipy.optimize", "sklearn.linear_model"):
        extra(module)
    with extra("threadpoolctl").threadpool_limits(limits=1):
        yield


def folds_of(gold: Ints, count: int, seed: int) -> Ints:
    """A fold number a document, (documents,): every label's documents are shuffled and dealt out in turn, so
    folds are alike.

    The dealing goes on from label to label, so that labels with a single document do not all fall into the
    first fold.
    """
    generator = np.random.default_rng(seed)
    order = np.concatenate(
        [generator.permutation(np.flatnonzero(gold == label)) for label in np.unique(gold)]
    )
    folds = np.empty(len(gold), dtype=np.int64)
    folds[order] = np.arange(len(gold)) % count
    return folds


def together(features: Floats, folds: Ints) -> Ints:
    """``folds`` with documents of the same evidence in one: the same text under two ids must not be in its
    own test.

    As they are where that would leave a single fold.
    """
    _, groups = np.unique(features.round(_ALIKE_DECIMALS), axis=0, return_inverse=True)
    _, first = np.unique(groups, return_index=True)
    moved: Ints = folds[first[groups]]
    return moved if len(np.unique(moved)) > 1 else folds


def select(
    features: Floats, gold: Ints, tried: Sequence[Candidate], *, label_count: int, folds: int, seed: int
) -> Selection:
    """Choose by cross-validation, fit the choice on everything, and test the whole procedure by nested
    cross-validation.
    """
    count = min(folds, len(gold))
    outer = together(features, folds_of(gold, count, seed))
    held_out = np.empty((len(gold), label_count))
    for fold in np.unique(outer):
        rest, test = outer != fold, outer == fold
        best, _ = _best(features[rest], gold[rest], tried, count, seed + 1 + int(fold))
        held_out[test] = best.fit(features[rest], gold[rest]).log_probabilities(features[test])
    best, losses = _best(features, gold, tried, count, seed)
    named = tuple((candidate.name, loss) for candidate, loss in zip(tried, losses, strict=True))
    return Selection(best.name, best.fit(features, gold), named, held_out, count)


def _best(
    features: Floats, gold: Ints, tried: Sequence[Candidate], count: int, seed: int
) -> tuple[Candidate, list[float]]:
    """The candidate of least cross-validated log-loss (the first, simplest one among equals), and all
    losses.
    """
    folds = together(features, folds_of(gold, min(count, len(gold)), seed))
    totals = [0.0] * len(tried)
    for fold in np.unique(folds):
        rest, test = folds != fold, np.flatnonzero(folds == fold)
        for index, candidate in enumerate(tried):
            found = candidate.fit(features[rest], gold[rest]).log_probabilities(features[test])
            totals[index] -= float(found[np.arange(len(test)), gold[test]].sum())
    losses = [total / len(gold) for total in totals]
    return tried[int(np.argmin(losses))], losses


def self_trained(evidence: Floats, states: Floats, shares: Floats) -> Linear:
    """A probe without gold labels: taught by the documents whose batch-calibrated scores are surest, then by
    those it is itself surest of.

    ``evidence`` (documents, labels) are log-probabilities, ``states`` (documents, coordinates), ``shares``
    (labels,) how common the labels are taken to be: each teaches with that share of half of the documents.
    Self-training after Yarowsky (ACL 1995) and Lee (2013).
    """
    logs, found = (
        evidence,
        Linear(np.zeros((evidence.shape[1], states.shape[1])), np.zeros(evidence.shape[1])),
    )
    for _ in range(_TEACHING_ROUNDS):
        rows, labels = _surest(logs, shares)
        found = _multinomial(_TEACHING_STRENGTH, evidence.shape[1])(states[rows], labels)
        logs = found.log_probabilities(states)
    return found


def _surest(logs: Floats, shares: Floats) -> tuple[Ints, Ints]:
    """For each label the documents by whose margin over the next label it is surest: their rows and
    labels.
    """
    rows, labels = [], []
    for label, share in enumerate(shares):
        margins = logs[:, label] - np.delete(logs, label, axis=1).max(axis=1)
        count = max(2, round(_TEACHING_SHARE * share * len(logs)))
        rows.append(np.argsort(-margins, kind="stable")[:count])
        labels.append(np.full(len(rows[-1]), label))
    return np.concatenate(rows), np.concatenate(labels)


# ── fits ────────────────────────────────────────────────────────────────────────────────────────────────────


def _temperature(features: Floats, gold: Ints) -> Linear:
    """One scale above zero, by its logarithm; a weak pull towards 1 keeps it finite where all gold documents
    are right.
    """
    label_count = features.shape[1]
    rows = np.arange(len(gold))

    def loss(parameters: Floats) -> tuple[float, Floats]:
        scale = float(np.exp(parameters[0]))
        logs = log_softmax(features * scale)
        slope = scale * ((np.exp(logs) * features).sum() - features[rows, gold].sum())
        value = -float(logs[rows, gold].sum()) + 0.5 * float(parameters[0]) ** 2
        return value, np.array([slope + parameters[0]])

    found = _minimize(loss, np.zeros(1))
    return Linear(np.eye(label_count) * float(np.exp(found[0])), np.zeros(label_count))


def _pulled(strength: float, *, diagonal: bool) -> Fit:
    """Weights and biases with an L2 pull of ``strength`` towards the temperature fitted on the same
    documents, biases towards 0.
    """

    def fit(features: Floats, gold: Ints) -> Linear:
        label_count = features.shape[1]
        start = _temperature(features, gold).weights
        rows = np.arange(len(gold))
        mask = np.eye(label_count) if diagonal else np.ones((label_count, label_count))

        def loss(parameters: Floats) -> tuple[float, Floats]:
            change, bias = (
                parameters[:-label_count].reshape(label_count, label_count) * mask,
                parameters[-label_count:],
            )
            logs = log_softmax(features @ (start + change).T + bias)
            residual = np.exp(logs)
            residual[rows, gold] -= 1
            slope = (residual.T @ features + strength * change) * mask
            value = -float(logs[rows, gold].sum()) + 0.5 * strength * float(
                (change**2).sum() + (bias**2).sum() / 4
            )
            return value, np.concatenate([slope.ravel(), residual.sum(axis=0) + strength / 4 * bias])

        found = _minimize(loss, np.zeros(label_count * label_count + label_count))
        return Linear(
            start + found[:-label_count].reshape(label_count, label_count) * mask, found[-label_count:]
        )

    return fit


def _on_scores(fit: Fit, label_count: int) -> Fit:
    """``fit`` on the labels' columns alone; the others weigh nothing."""

    def fit_scores(features: Floats, gold: Ints) -> Linear:
        found = fit(features[:, :label_count], gold)
        return Linear(
            np.hstack([found.weights, np.zeros((label_count, features.shape[1] - label_count))]), found.bias
        )

    return fit_scores


def _probe(strength: float, label_count: int) -> Fit:
    """Multinomial on all columns; scores count less than states, by a factor found on development documents
    of two corpora.
    """

    def fit(features: Floats, gold: Ints) -> Linear:
        weighing = np.where(np.arange(features.shape[1]) < label_count, _SCORES_IN_PROBE, 1.0)
        found = _multinomial(strength, label_count)(features * weighing, gold)
        return Linear(found.weights * weighing, found.bias)

    return fit


def _multinomial(strength: float, labels: int | None = None) -> Fit:
    """scikit-learn's L2-regularized multinomial logistic regression; labels without a gold document get the
    lowest bias there is.
    """

    def fit(features: Floats, gold: Ints) -> Linear:
        linear_model = extra("sklearn.linear_model")
        label_count = labels or features.shape[1]
        present = np.unique(gold)
        weights, bias = (
            np.zeros((label_count, features.shape[1])),
            np.full(label_count, -np.log(len(gold) * label_count)),
        )
        if len(present) > 1:
            with warnings.catch_warnings():  # so near the least loss that rounding decides: as good as there
                warnings.simplefilter("ignore", extra("sklearn.exceptions").ConvergenceWarning)
                # few gold documents of many labels
                warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
                model = linear_model.LogisticRegression(C=1 / strength, max_iter=500, tol=1e-4).fit(
                    features, gold
                )
            coefficients, intercepts = np.asarray(model.coef_), np.asarray(model.intercept_)
            if len(present) == 2:  # one row there, for the second label against the first
                coefficients, intercepts = (
                    np.vstack([-coefficients, coefficients]) / 2,
                    np.concatenate([-intercepts, intercepts]) / 2,
                )
            weights[present], bias[present] = coefficients, intercepts
        else:
            bias[present] = 0.0
        return Linear(weights, bias)

    return fit


def _minimize(loss: Callable[[Floats], tuple[float, Floats]], start: Floats) -> Floats:
    """The least point of a smooth convex function that returns its value and slope (L-BFGS; scipy comes with
    scikit-learn).
    """
    optimize = extra("scipy.optimize")
    found: Floats = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    return found
