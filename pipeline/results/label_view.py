"""Label answers as they are shown: a calibration and a threshold over the scores that the ledger keeps for
ever.

A view costs no inference. It is kept in the ledger with a number and applied when answers are exported,
reported or judged; earlier views stay, and number 0 is always what the model said itself. How views are made:
``calibrate``; how they are chosen and deleted: ``kept_views``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pipeline.errors import UsageError
from pipeline.quality.abstain import abstains
from pipeline.quality.calibration import Calibration, calibrate
from pipeline.quality.features import FEATURE_BYTES, unpacked
from pipeline.quality.scores import Floats
from pipeline.quality.several import SeveralCalibration, calibrate_several, parse_calibration
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskResult, TaskRow
from pipeline.stores.ledger.view_rows import ViewRow


@dataclass(frozen=True, slots=True)
class View:
    """A view ready to be applied. ``final``: no document of the task was missing when it was made;
    ``answers_nobody``: it abstained from all that were finished. ``target_accuracy``: its threshold was
    chosen so that answers are right this often.

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
    answers_nobody: bool = False
    target_accuracy: float | None = None

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


def view_in_force(ledger: Ledger, task: TaskRow, number: int | None = None) -> View | None:
    """The view of a task that is shown, or the one of that ``number``; None for 0 and where answers are shown
    as they were recorded. Raises UsageError for unknown ones.
    """
    if task.job.kind != "label" or number == 0:
        return None
    if number is None:
        shown = ledger.shown_view(task.job.name)
        if shown is None:
            return None
        if shown.number == 0:
            return _own_labels(task)
        number = shown.number
    return view_of(kept_view(ledger, task, number))


def kept_view(ledger: Ledger, task: TaskRow, number: int) -> ViewRow:
    """The view of that number, above 0. Raises UsageError where there is none."""
    kept = {row.number: row for row in ledger.views(task.job.name)}
    if number not in kept:
        there = f"it has {', '.join(map(str, kept))}" if kept else "it has none"
        raise UsageError(
            f"task {task.job.name!r} has no view {number}; {there} (0 is what the model said itself)"
        )
    return kept[number]


def _own_labels(task: TaskRow) -> View:
    """What the model said itself, as a view."""
    labels = labels_of(task)
    nothing = np.empty((0, len(labels)))
    several = is_multi(task)
    made = (
        calibrate_several(nothing, labels, method="none")
        if several
        else calibrate(nothing, labels, method="none")
    )
    return View(0, made, None, made.sentence, final=True)


def label_tasks(ledger: Ledger, names: Sequence[str] | None = None) -> list[TaskRow]:
    """The label tasks of a run, or those of ``names``. Raises UsageError where there are none."""
    known = {task.job.name: task for task in ledger.tasks()}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise UsageError(f"there is no task {unknown[0]!r}; the run has {', '.join(known)}")
    chosen = [known[name] for name in names or (name for name in known if known[name].job.kind == "label")]
    if not chosen:
        raise UsageError("the run has no label task: there is nothing to calibrate")
    for task in chosen:
        labels_of(task)
    return chosen


def the_label_task(ledger: Ledger, name: str | None) -> TaskRow:
    """The label task of that name, or the only one. Raises UsageError."""
    known = {task.job.name: task for task in ledger.tasks() if task.job.kind == "label"}
    if name is None and len(known) > 1:
        raise UsageError(f"the run has several label tasks: choose one with --task ({', '.join(known)})")
    if not known or (name is not None and name not in known):
        raise UsageError(f"the run has no label task{f' {name!r}' if name else ''}")
    return known[name] if name is not None else next(iter(known.values()))


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
        bool(facts.get("answers_nobody")),
        facts.get("target_accuracy"),
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
