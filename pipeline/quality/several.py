"""Calibration of tasks that may give several labels (``multi``): every label is a yes/no question of its own,
calibrated by itself.

Scores are natural-log probabilities of yes, (documents, labels). Nothing is assumed about how common a label
is unless it is said (``expected_shares``: each label's own share of the documents) or shown by gold labels:
that every label holds for half of the documents, which is what a calibration over the batch would assume, is
rarely so.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipeline.errors import LedgerError, UsageError
from pipeline.quality.calibration import Calibration, Method, calibrate, yes_no
from pipeline.quality.scores import Floats, matrix

FORMAT = 1
"""Version of the JSON of such a calibration."""

_ANSWERS = ("yes", "no")


@dataclass(frozen=True, slots=True)
class SeveralCalibration:
    """One calibration of (yes, no) a label, in the labels' order."""

    labels: tuple[str, ...]
    parts: tuple[Calibration, ...]

    @property
    def method(self) -> Method:
        """``gold`` where any label is calibrated so, else ``batch`` where any is, else ``none``."""
        used: set[Method] = {part.method for part in self.parts}
        return "gold" if "gold" in used else "batch" if "batch" in used else "none"

    @property
    def gold(self) -> int:
        """Documents with gold labels."""
        return max((part.gold for part in self.parts), default=0)

    @property
    def fitted_rows(self) -> tuple[int, ...]:
        """Rows whose gold labels some label was fitted on."""
        return tuple(
            sorted(
                {row for part in self.parts if part.cross_validation for row in part.cross_validation.rows}
            )
        )

    @property
    def feature_count(self) -> int:
        """As of ``Calibration``: scores are enough here."""
        return 0

    def log_probabilities(self, scores: npt.ArrayLike, _features: npt.ArrayLike | None = None) -> Floats:
        """Calibrated natural logs of yes, (documents, labels), of raw ones. Raises UsageError."""
        rows = matrix(scores, self.labels)
        columns = [
            part.log_probabilities(yes_no(rows[:, place]))[:, 0] for place, part in enumerate(self.parts)
        ]
        return np.column_stack(columns) if columns else rows

    def held_out(self, scores: Floats) -> Floats:
        """The same of ``fitted_rows`` as fits without each of them say it; labels that nothing was fitted for
        as they are.
        """
        rows = list(self.fitted_rows)
        found = self.log_probabilities(scores[rows])
        places = {row: place for place, row in enumerate(rows)}
        for column, part in enumerate(self.parts):
            if part.cross_validation is not None:
                for row, logs in zip(part.cross_validation.rows, part.cross_validation.held_out, strict=True):
                    found[places[row], column] = logs[0]
        return found

    @property
    def sentence(self) -> str:
        """What an export and a report state beside the answers."""
        methods = Counter(part.method for part in self.parts)
        parts = [
            "calibration of each label by itself: "
            + ", ".join(f"{count:,} labels by {name}" for name, count in methods.items())
        ]
        parts += sorted(
            {part.assumption for part in self.parts if part.method == "gold"}
            | ({_NOTHING} if "none" in methods else set())
        )
        parts += ["assumes each label's expected share"] if "batch" in methods else []
        checked = [part.cross_validation for part in self.parts if part.cross_validation is not None]
        if checked:
            right, error = (
                math.fsum(values) / len(checked)
                for values in ([one.accuracy for one in checked], [one.calibration_error for one in checked])
            )
            parts.append(
                f"{self.gold:,} documents with gold labels; by cross-validation on them {right:.3f} of "
                f"the yes/no decisions are right, "
                f"mean calibration error {error:.3f}"
            )
        notes = Counter(note for part in self.parts for note in part.notes)
        return "; ".join([*parts, *(f"{count:,} labels: {note}" for note, count in notes.items())])

    def to_json(self) -> str:
        """The calibration as JSON, the same text for the same calibration."""
        parts = [json.loads(part.to_json()) for part in self.parts]
        return json.dumps(
            {"several": FORMAT, "labels": list(self.labels), "parts": parts}, sort_keys=True, allow_nan=False
        )


_NOTHING = "of the labels calibrated by none nothing is assumed: theirs are the model's own probabilities"


def parse_calibration(text: str) -> Calibration | SeveralCalibration:
    """What ``to_json`` of either kind has written. Raises LedgerError."""
    try:
        values: Any = json.loads(text)
        if not isinstance(values, dict) or "several" not in values:
            return Calibration.from_json(text)
        if values["several"] != FORMAT:
            raise LedgerError(
                f"the calibration has the format {values['several']}, this version reads {FORMAT}"
            )
        parts = tuple(Calibration.from_json(json.dumps(part)) for part in values["parts"])
        return SeveralCalibration(tuple(values["labels"]), parts)
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"this is not a calibration: {error!r}") from None


def calibrate_several(
    scores: Floats,
    labels: Sequence[str],
    *,
    method: Literal["auto", "none", "batch", "gold"] = "auto",
    expected_shares: Mapping[str, float] | None = None,
    gold: Mapping[int, Sequence[str]] | None = None,
    seed: int = 0,
) -> SeveralCalibration:
    """The calibration of ``scores``, natural logs of yes, (documents, labels). ``gold`` maps rows to all of
    their true labels.

    A label that the gold documents say too little about is calibrated by its expected share, else left as it
    is, with a note. Raises UsageError.
    """
    if method == "batch" and expected_shares is None:
        raise UsageError(
            "over the batch several labels are calibrated only with expected shares, each label's own "
            "share of the documents: that every "
            "label holds for half of them cannot be assumed; give expected_shares, or gold labels"
        )
    shares = None if expected_shares is None else own_shares(expected_shares, labels)
    rows = matrix(scores, labels)
    parts = []
    for place, label in enumerate(labels):
        truth = {
            row: _ANSWERS[0] if label in named else _ANSWERS[1] for row, named in sorted((gold or {}).items())
        }
        share = None if shares is None else {"yes": shares[place], "no": 1 - shares[place]}
        parts.append(_part(yes_no(rows[:, place]), method, share, truth, seed))
    return SeveralCalibration(tuple(labels), tuple(parts))


def _part(
    scores: Floats,
    method: Literal["auto", "none", "batch", "gold"],
    share: Mapping[str, float] | None,
    truth: Mapping[int, str],
    seed: int,
) -> Calibration:
    """One label's calibration."""
    plain: Literal["none", "batch"] = "none" if share is None or method == "none" else "batch"
    if method in ("none", "batch") or not truth:
        return calibrate(scores, _ANSWERS, method=plain, expected_shares=share, seed=seed)
    found = calibrate(scores, _ANSWERS, method="gold", expected_shares=share, gold=truth, seed=seed)
    if found.method == "gold" or plain == "batch":
        return found
    return replace(calibrate(scores, _ANSWERS, method="none", seed=seed), notes=found.notes, gold=found.gold)


def own_shares(shares: Mapping[str, float], labels: Sequence[str]) -> list[float]:
    """Each label's own expected share of the documents, in the labels' order. Raises UsageError."""
    for name in [*shares, *labels]:
        if name not in labels or name not in shares:
            what = (
                "is not a label of the task"
                if name not in labels
                else "has no share: give one for every label"
            )
            raise UsageError(f"expected_shares: {name!r} {what}")
    found = [float(shares[label]) for label in labels]
    wrong = [label for label, share in zip(labels, found, strict=True) if not 0 < share < 1]
    if wrong:
        raise UsageError(
            f"expected_shares: the share of {wrong[0]!r}, {shares[wrong[0]]}, is not between 0 and 1"
        )
    return found
