"""From raw label scores to calibrated log-probabilities: which method, under which assumption, how good by
cross-validation.

A calibration is a frozen value: one linear map of the normalized scores and, where they were kept, of the
model's states (``features``), and the description that every export states. It is kept as plain JSON and
applied to any number of documents without scikit-learn, a model or a gold set.

With ``multi`` every label is a question of its own: calibrate the two-column matrix of ``yes_no`` for each of
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipeline.errors import LedgerError, UsageError
from pipeline.quality.features import Features, Reduced, reduced, standardized
from pipeline.quality.fitting import Linear, Selection, candidates, one_thread, select, self_trained
from pipeline.quality.metrics import expected_calibration_error
from pipeline.quality.scores import Floats, blocks, has_extra, label_numbers, log_softmax, matrix, normalized
from pipeline.quality.shares import expected, mean_offsets, share_offsets

FORMAT = 1
"""Version of the JSON of a calibration."""

LEAST_GOLD = 10
LEAST_TAUGHT = 100
LEAST_TAUGHT_A_LABEL = 25
"""Self-training needs so many documents: fewer teach it their accidents."""

FOLDS = 5
FOLDS_OF_MANY = 3
_MANY_LABELS = 24
_LEAST_SCALE = 1e-6

Method = Literal["none", "batch", "self_training", "gold"]


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """What nested cross-validation on the gold set says of the whole procedure; None where it was not made.

    ``held_out`` (gold documents, labels) are the log-probabilities that each gold document got from a
    calibrator fitted without it, in the order of ``rows``; they are not part of the JSON.
    """

    accuracy: float
    calibration_error: float
    log_loss: float
    folds: int
    rows: tuple[int, ...] = ()
    held_out: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibrated log-probabilities = log_softmax(normalized scores @ weights.T + features @ feature_weights.T
    + bias), and their origin.

    ``weights`` (labels, labels); ``feature_weights`` (labels, features), empty where the features have no
    part in it. ``fitted_on`` counts the documents whose scores entered the offsets; ``tried`` are the
    candidates' cross-validated log-losses.
    """

    labels: tuple[str, ...]
    method: Method
    form: str
    assumption: str
    weights: tuple[tuple[float, ...], ...]
    bias: tuple[float, ...]
    fitted_on: int = 0
    gold: int = 0
    seed: int = 0
    cross_validation: CrossValidation | None = None
    tried: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()
    feature_weights: tuple[tuple[float, ...], ...] = ()

    @property
    def feature_count(self) -> int:
        """How many features of a document are needed; 0 where its scores are enough."""
        return len(self.feature_weights[0]) if self.feature_weights else 0

    def log_probabilities(self, scores: npt.ArrayLike, features: npt.ArrayLike | None = None) -> Floats:
        """Calibrated natural logs, (documents, labels), of raw scores of that shape; as probabilities each
        row sums to 1.

        ``features`` (documents, features) where ``feature_count`` is not 0. Raises UsageError.
        """
        rows = matrix(scores, self.labels)
        states = self._states(features, len(rows))
        weights, bias = np.array(self.weights), np.array(self.bias)
        for_all = np.empty_like(rows)
        for block in blocks(len(rows), rows.shape[1] + self.feature_count):
            logits = normalized(rows[block]) @ weights.T + bias
            if states is not None:
                logits += states[block].astype(np.float64) @ np.array(self.feature_weights).T
            for_all[block] = log_softmax(logits)
        return for_all

    def _states(self, features: npt.ArrayLike | None, count: int) -> npt.NDArray[Any] | None:
        if not self.feature_count:
            return None
        states = np.asarray(features if features is not None else np.empty((0, 0)))
        if states.shape != (count, self.feature_count):
            needed = (count, self.feature_count)
            raise UsageError(
                f"this calibration needs features of the shape {needed}, not {states.shape}: documents of "
                f"another model?"
            )
        return states

    @property
    def sentence(self) -> str:
        """What an export and a report state beside the answers."""
        parts = [
            f"calibration: {self.method}" + (f" ({self.form})" if self.form != self.method else ""),
            self.assumption,
        ]
        if self.cross_validation is not None:
            checked = self.cross_validation
            parts.append(
                f"{self.gold:,} gold labels; by cross-validation on them accuracy {checked.accuracy:.3f}, "
                f"calibration error {checked.calibration_error:.3f}"
            )
        return "; ".join([*parts, *self.notes])

    def to_json(self) -> str:
        """The calibration as JSON, the same text for the same calibration."""
        values = asdict(self)
        if self.cross_validation is not None:
            del values["cross_validation"]["rows"], values["cross_validation"]["held_out"]
        return json.dumps({"format": FORMAT, **values}, sort_keys=True, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Calibration:
        """The calibration of ``to_json``. Raises LedgerError when it is not one, or of a newer version."""
        try:
            values: dict[str, Any] = json.loads(text)
            found = values.pop("format")
            if found != FORMAT:
                raise LedgerError(
                    f"the calibration has the format {found}, this version reads {FORMAT}; use the "
                    f"version that wrote it"
                )
            checked = values.pop("cross_validation")
            for name in ("labels", "bias", "notes"):
                values[name] = tuple(values[name])
            for name in ("weights", "tried", "feature_weights"):
                values[name] = tuple(map(tuple, values[name]))
            return Calibration(
                **values, cross_validation=None if checked is None else CrossValidation(**checked)
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LedgerError(f"this is not a calibration: {error!r}") from None


def calibrate(
    scores: npt.ArrayLike,
    labels: Sequence[str],
    *,
    method: Literal["auto", "none", "batch", "self_training", "gold"] = "auto",
    expected_shares: Mapping[str, float] | None = None,
    gold: Mapping[int, str] | None = None,
    features: Features | None = None,
    seed: int = 0,
) -> Calibration:
    """The calibration of a run's ``scores``, natural logs, (documents, labels).

    ``gold`` maps rows to their true labels; ``auto`` uses it when there is one and the batch otherwise. A
    gold set that is too small to fit and test anything falls back to what is done without one, with a note.
    ``features`` hold at least those of the gold documents. Deterministic in its arguments. Raises UsageError.
    """
    rows = matrix(scores, labels)
    if method == "none" or not len(rows):
        return _uncalibrated(labels, seed)
    over_batch = _over_batch(rows, labels, expected_shares, seed)
    if method == "batch" or (method == "auto" and not gold and not _can_teach(features, len(labels))):
        return over_batch
    if method == "self_training" or (method == "auto" and not gold):
        return _self_trained(rows, over_batch, features, expected_shares)
    gold = dict(sorted((gold or {}).items()))
    numbers = label_numbers(list(gold.values()), labels)
    if reason := too_small(len(gold), len(np.unique(numbers))):
        teaches = method == "auto" and _can_teach(features, len(labels))
        without = _self_trained(rows, over_batch, features, expected_shares) if teaches else over_batch
        return replace(without, gold=len(gold), notes=(*without.notes, reason))
    places = _places(gold, len(rows))
    scale = _scale(rows, over_batch)
    evidence = (normalized(rows[places]) + np.array(over_batch.bias)) / scale
    states = None if features is None else reduced(features, places)
    # In the order of their names, so that the folds, and by them the choice, do not depend on the order in
    # which labels are listed.
    by_name = np.array(sorted(range(len(labels)), key=labels.__getitem__))
    with one_thread():
        found = select(
            evidence[:, by_name] if states is None else np.hstack([evidence[:, by_name], states.values]),
            np.argsort(by_name)[numbers],
            candidates(len(labels), scale, with_states=states is not None),
            label_count=len(labels),
            folds=FOLDS if len(labels) <= _MANY_LABELS else FOLDS_OF_MANY,
            seed=seed,
        )
    return _fitted(over_batch, _listed(found, np.argsort(by_name)), places, numbers, scale, states)


def yes_no(log_yes: npt.ArrayLike) -> Floats:
    """The two columns (yes, no) of one label's log-probabilities of yes, (documents,), for a task with
    ``multi``.
    """
    yes = np.minimum(np.asarray(log_yes, dtype=np.float64), 0.0)
    no = np.log(np.maximum(-np.expm1(yes), 1e-300))
    return np.column_stack([yes, no])


def _uncalibrated(labels: Sequence[str], seed: int) -> Calibration:
    form = "the model's own scores, normalized over the labels"
    return Calibration(
        tuple(labels),
        "none",
        form,
        "nothing is assumed",
        _rows(np.eye(len(labels))),
        (0.0,) * len(labels),
        seed=seed,
    )


def _over_batch(
    rows: Floats, labels: Sequence[str], shares: Mapping[str, float] | None, seed: int
) -> Calibration:
    if shares is None:
        offsets = mean_offsets(rows)
        form = "each label's mean log-probability over the documents subtracted"
        assumption = "assumes that the labels are about equally common among these documents"
    else:
        wanted = expected(shares, labels)
        offsets = share_offsets(rows, wanted)
        form = "offsets with which each label's mean probability is its expected share"
        common = sorted(zip(labels, wanted.tolist(), strict=True), key=lambda pair: -pair[1])[:5]
        assumption = "assumes the expected shares " + ", ".join(
            f"{label} {share:.3g}" for label, share in common
        )
        assumption += "" if len(labels) <= 5 else f" and those of {len(labels) - 5} more"
    weights = _rows(np.eye(len(labels)))
    return Calibration(
        tuple(labels), "batch", form, assumption, weights, tuple(offsets.tolist()), len(rows), seed=seed
    )


def _can_teach(features: Features | None, label_count: int) -> bool:
    return (
        features is not None
        and has_extra()
        and len(features.places) >= max(LEAST_TAUGHT, LEAST_TAUGHT_A_LABEL * label_count)
    )


def _self_trained(
    rows: Floats, over_batch: Calibration, features: Features | None, shares: Mapping[str, float] | None
) -> Calibration:
    states = standardized(features) if features is not None else None
    if features is None or states is None:
        return replace(
            over_batch, notes=("the model's states were not kept, so nothing could be taught by them",)
        )
    common = (
        np.full(len(over_batch.labels), 1 / len(over_batch.labels))
        if shares is None
        else expected(shares, over_batch.labels)
    )
    with one_thread():
        found = self_trained(over_batch.log_probabilities(rows[features.places]), states.values, common)
    weights, moved = states.back(found.weights)
    return replace(
        over_batch,
        method="self_training",
        form="a probe on the model's states, taught by the documents that the batch-calibrated scores are "
        "surest of",
        weights=_rows(np.zeros((len(common), len(common)))),
        bias=tuple((found.bias + moved).tolist()),
        feature_weights=_rows(weights),
    )


def too_small(count: int, different: int) -> str:
    """Why ``count`` gold labels, ``different`` ones among them, are not fitted on; "" where they are."""
    if count < LEAST_GOLD:
        return (
            f"the gold set of {count} documents is too small to fit and test a calibration (at least "
            f"{LEAST_GOLD}): not used for it"
        )
    return (
        ""
        if different > 1
        else "all gold documents have one label, from which nothing can be fitted: not used for calibration"
    )


def _without_gold(labels: Sequence[str], numbers: npt.NDArray[np.int64]) -> tuple[str, ...]:
    """What cross-validation cannot show: documents of a label that the gold set lacks are never in its
    tests.
    """
    missing = [repr(label) for place, label in enumerate(labels) if place not in set(numbers.tolist())]
    if not missing:
        return ()
    named = ", ".join(missing[:5]) + (f" and {len(missing) - 5:,} more" if len(missing) > 5 else "")
    return (
        (
            f"no gold document has the label {named}: it may never be given, and the accuracy says nothing "
            f"about it"
        ),
    )


def _places(gold: Mapping[int, str], row_count: int) -> npt.NDArray[np.int64]:
    places = np.fromiter(gold, dtype=np.int64, count=len(gold))
    if places.min() < 0 or places.max() >= row_count:
        raise UsageError(f"the gold set names row {places.max():,}, the run has {row_count:,} documents")
    return places


def _scale(rows: Floats, over_batch: Calibration) -> float:
    """The standard deviation of the batch-calibrated scores about each document's mean, over (at most
    100,000) documents.
    """
    thinned = normalized(rows[:: math.ceil(len(rows) / 100_000)]) + np.array(over_batch.bias)
    return max(_LEAST_SCALE, float((thinned - thinned.mean(axis=1, keepdims=True)).std()))


def _listed(found: Selection, places: npt.NDArray[np.int64]) -> Selection:
    """The selection with its labels in the order of ``places``; columns beyond the labels' stay where they
    are.
    """
    columns = np.concatenate([places, np.arange(len(places), found.calibrator.weights.shape[1])])
    calibrator = Linear(found.calibrator.weights[np.ix_(places, columns)], found.calibrator.bias[places])
    return replace(found, calibrator=calibrator, held_out=found.held_out[:, places])


def _fitted(
    over_batch: Calibration,
    found: Selection,
    places: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.int64],
    scale: float,
    states: Reduced | None,
) -> Calibration:
    # evidence = (normalized + offsets) / scale, so the map on normalized scores is weights / scale and its
    # bias takes the offsets along.
    count = len(over_batch.labels)
    weights = found.calibrator.weights[:, :count] / scale
    bias = weights @ np.array(over_batch.bias) + found.calibrator.bias
    of_states = found.calibrator.weights[:, count:]
    on_features = np.zeros((count, 0))
    if states is not None and of_states.any():
        on_features, moved = states.back(of_states)
        bias = bias + moved
    held_out = found.held_out
    checked = CrossValidation(
        accuracy=float((held_out.argmax(axis=1) == numbers).mean()),
        calibration_error=expected_calibration_error(
            np.exp(held_out.max(axis=1)), held_out.argmax(axis=1) == numbers
        ),
        log_loss=float(-held_out[np.arange(len(numbers)), numbers].mean()),
        folds=found.folds,
        rows=tuple(places.tolist()),
        held_out=_rows(held_out),
    )
    return replace(
        over_batch,
        method="gold",
        form=found.chosen,
        assumption="assumes that the gold documents were drawn like the others",
        weights=_rows(weights),
        bias=tuple(bias.tolist()),
        gold=len(numbers),
        notes=_without_gold(over_batch.labels, numbers),
        cross_validation=checked,
        tried=found.losses,
        feature_weights=_rows(on_features) if on_features.size else (),
    )


def _rows(values: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, values.tolist()))
