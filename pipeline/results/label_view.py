"""Label answers as they are shown: a calibration and a threshold over the scores that the ledger keeps for
ever.

A view costs no inference. It is kept in the ledger with a number and applied when answers are exported,
reported or judged; earlier views stay, and number 0 is always what the model said itself. How views are made:
``recalibration``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pipeline.errors import UsageError
from pipeline.quality.abstain import abstains
from pipeline.quality.calibration import Calibration
from pipeline.quality.features import FEATURE_BYTES, unpacked
from pipeline.quality.scores import Floats
from pipeline.quality.several import SeveralCalibration, parse_calibration
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskResult, TaskRow, ViewRow


@dataclass(frozen=True, slots=True)
class View:
    """A view ready to be applied. ``final``: no document of the task was missing when it was made.

    ``gold_labels`` maps the keys of the documents whose labels it was made with to these; ``held_out`` those
    that the calibration was fitted on to the natural logs (by label) that a fit without them gives, which is
    what they may be judged by.
    """

    number: int
    calibration: Calibration | SeveralCalibration
    threshold: float | None
    sentence: str
    final: bool
    gold_labels: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    held_out: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def multi(self) -> bool:
        """Whether it shows any number of labels a document."""
        return isinstance(self.calibration, SeveralCalibration)

    @property
    def fitted_on(self) -> frozenset[str]:
        """Keys of the documents whose gold labels the calibration knows."""
        return frozenset(self.gold_labels) if self.calibration.method == "gold" else frozenset()

    def short(self) -> str:
        """For a cell of an export: number, method, and whether more documents may still change it."""
        return f"view {self.number}: {self.calibration.method}" + ("" if self.final else " (not final)")

    def facts(self) -> dict[str, Any]:
        """What a report says of it."""
        return {
            "number": self.number,
            "method": self.calibration.method,
            "sentence": self.sentence,
            "final": self.final,
            "threshold": self.threshold,
        }

    def covers(self, result: TaskResult) -> bool:
        """Whether ``result`` has what this view is computed from; if not, what the model said itself is
        shown.
        """
        return (
            result.state == "done"
            and bool(result.scores)
            and len(result.features) >= FEATURE_BYTES * self.calibration.feature_count
        )

    def apply(self, results: Sequence[TaskResult]) -> list[TaskResult]:
        """``results`` that it covers as this view shows them."""
        labels = self.calibration.labels
        features = (
            unpacked([result.features for result in results]) if self.calibration.feature_count else None
        )
        logs = self.calibration.log_probabilities(
            [[_of(result)[label] for label in labels] for result in results], features
        )
        return [self._shown(result, row) for result, row in zip(results, np.exp(logs), strict=True)]

    def _shown(self, result: TaskResult, probabilities: Floats) -> TaskResult:
        value, gone = self.decide(probabilities)
        odds = dict(zip(self.calibration.labels, probabilities.tolist(), strict=True))
        return replace(
            result,
            value=None if gone else value,
            finish_reason="abstained" if gone else "stop",
            probabilities=odds,
        )

    def decide(self, probabilities: Floats) -> tuple[str | list[str], bool]:
        """The answer that these probabilities, (labels,), give, and whether it is abstained from."""
        labels = self.calibration.labels
        value: str | list[str]
        if self.multi:
            value = [label for label, odds in zip(labels, probabilities, strict=True) if odds >= 0.5]
        else:
            value = labels[int(probabilities.argmax())]
        gone = self.threshold is not None and bool(
            abstains(certainty(probabilities[None], multi=self.multi), self.threshold)[0]
        )
        return value, gone


def certainty(probabilities: Floats, *, multi: bool) -> Floats:
    """How sure the answers are, (documents,): the best label's probability, or with ``multi`` the least
    certain yes or no.
    """
    found: Floats = (
        np.maximum(probabilities, 1 - probabilities).min(axis=1) if multi else probabilities.max(axis=1)
    )
    return found


def latest_view(ledger: Ledger, task: TaskRow, number: int | None = None) -> View | None:
    """The task's latest view, or the one of that ``number``; None for 0 and where there is none. Raises
    UsageError for unknown ones.
    """
    if task.job.kind != "label" or number == 0:
        return None
    kept = ledger.views(task.job.name)
    if number is None:
        return view_of(kept[-1]) if kept else None
    if number > len(kept):
        raise UsageError(
            f"task {task.job.name!r} has no view {number}; it has {len(kept)} (0 is what the model said "
            f"itself)"
        )
    return view_of(kept[number - 1])


def labels_of(task: TaskRow) -> tuple[str, ...]:
    """The labels of a label task. Raises UsageError for other tasks."""
    if task.job.kind != "label":
        raise UsageError(
            f"task {task.job.name!r} is of kind {task.job.kind}; only label tasks have scores to calibrate"
        )
    return tuple(name for name, _ in task.job.identity["task"]["labels"])


def is_multi(task: TaskRow) -> bool:
    """Whether the task may give several labels to a document."""
    return bool(task.job.identity.get("task", {}).get("multi"))


def shown_to_the_model(task: TaskRow) -> frozenset[str]:
    """Ids of the examples in the task's prompt: the model has read their labels."""
    examples: Any = task.job.identity.get("examples") or ()
    return frozenset(str(example[0]) for example in examples)


def view_of(row: ViewRow) -> View:
    """The view that the ledger keeps as ``row``. Raises LedgerError."""
    facts = row.facts
    return View(
        row.number,
        parse_calibration(row.calibration),
        row.threshold,
        str(facts.get("sentence", "")),
        bool(facts.get("final")),
        facts.get("gold_labels") or {},
        facts.get("held_out") or {},
    )


def _of(result: TaskResult) -> Mapping[str, float]:
    assert result.scores is not None, "only scored results are shown through a view"
    return result.scores


def said_of(task: TaskRow, result: TaskResult) -> TaskResult:
    """``result`` with what the model said itself also where it was abstained from when it was recorded."""
    if result.state != "done" or result.value is not None or not result.probabilities:
        return result
    odds = {name: number for name, number in result.probabilities.items() if math.isfinite(number)}
    value: Any = (
        [name for name, number in odds.items() if number >= 0.5]
        if is_multi(task)
        else max(odds, key=odds.__getitem__, default=None)
    )
    return replace(result, value=value, finish_reason="stop")
