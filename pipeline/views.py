"""Label answers as they are shown: a calibration and a threshold over the scores that the ledger keeps for ever.

A view costs no inference. It is computed from all finished documents of a task, kept in the ledger with a number, and applied when answers are
exported; earlier views stay, and number 0 is always what the model said itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from pipeline.config import Config, LabelTask
from pipeline.errors import UsageError
from pipeline.gold import read_gold
from pipeline.quality.abstain import Threshold, abstains, choose_threshold
from pipeline.quality.calibration import Calibration, calibrate
from pipeline.quality.scores import Floats, label_numbers
from pipeline.records import digest
from pipeline.stores.ledger import Ledger
from pipeline.stores.reading import ExportRow, TaskResult, TaskRow, ViewRow

Method = Literal["auto", "none", "batch", "gold"]
_METHODS = ("auto", "none", "batch", "gold")
_BLOCK_ROWS = 1000
# A threshold that no probability reaches: everything is abstained from.
_ALL_ABSTAINED = 2.0
# A mean over fewer documents says more about them than about the model.
LEAST_BATCH = 32


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """What a view is asked to be. ``gold`` maps document ids to labels; ``unfit`` are ids whose labels the model has been shown."""

    method: Method = "auto"
    expected_shares: Mapping[str, float] | None = None
    gold: Mapping[str, str] | None = None
    unfit: frozenset[str] = frozenset()
    abstain_below: float | None = None
    target_accuracy: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """A view ready to be applied. ``final``: no document of the task was missing when it was made."""

    number: int
    calibration: Calibration
    threshold: float | None
    sentence: str
    final: bool

    def short(self) -> str:
        """For a cell of an export: number, method, and whether more documents may still change it."""
        return f"view {self.number}: {self.calibration.method}" + ("" if self.final else " (not final)")

    def apply(self, results: Sequence[TaskResult]) -> list[TaskResult]:
        """``results`` of done documents as this view shows them."""
        labels = self.calibration.labels
        logs = self.calibration.log_probabilities([[_of(result)[label] for label in labels] for result in results])
        probabilities = np.exp(logs)
        away = np.zeros(len(results), dtype=bool) if self.threshold is None else abstains(probabilities.max(axis=1), self.threshold)
        best = probabilities.argmax(axis=1)
        return [
            replace(
                result,
                value=None if gone else labels[place],
                finish_reason="abstained" if gone else "stop",
                probabilities=dict(zip(labels, row.tolist(), strict=True)),
            )
            for result, row, place, gone in zip(results, probabilities, best, away, strict=True)
        ]


def calibrate_run(
    ledger: Ledger, *, names: Sequence[str] | None = None, gold: Path | None = None, label_field: str = "label", method: str = "auto",
    shares: Sequence[str] | None = None, abstain_below: float | None = None, target_accuracy: float | None = None,
) -> dict[str, View]:  # fmt: skip
    """A new view of each named label task, or of all. ``shares`` are written LABEL=SHARE. Raises UsageError."""
    known = {task.job.name: task for task in ledger.tasks()}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise UsageError(f"there is no task {unknown[0]!r}; the run has {', '.join(known)}")
    chosen = list(names or (name for name, task in known.items() if task.job.kind == "label"))
    if not chosen:
        raise UsageError("the run has no label task: there is nothing to calibrate")
    if method not in _METHODS:
        raise UsageError(f"method {method!r} is none of {', '.join(_METHODS)}")
    made = {}
    for name in chosen:
        task = known[name]
        options = ViewOptions(
            method=cast("Method", method), expected_shares=_shares(shares), abstain_below=abstain_below, target_accuracy=target_accuracy,
            gold=None if gold is None else read_gold(gold, labels_of(task), label_field=label_field), unfit=shown_to_the_model(task),
        )  # fmt: skip
        made[name] = make_view(ledger, task, options)
    return made


def calibrate_as_configured(ledger: Ledger, config: Config) -> None:
    """After a run: its label tasks are calibrated over its documents, unless gold labels have calibrated them better, or they are too few."""
    known = {task.job.name: task for task in ledger.tasks()}
    for task in config.tasks:
        if not isinstance(task, LabelTask) or task.multi or task.calibration == "none" or task.name not in known:
            continue
        kept = ledger.views(task.name)
        if kept and Calibration.from_json(kept[-1].calibration).method == "gold":
            continue
        if len(list(itertools.islice(ledger.scored(task.name), LEAST_BATCH))) < LEAST_BATCH:
            continue
        options = ViewOptions("batch", expected_shares=task.expected_shares, abstain_below=task.abstain_below)
        make_view(ledger, known[task.name], options)


def shown_to_the_model(task: TaskRow) -> frozenset[str]:
    """Ids of the examples in the task's prompt: the model has read their labels."""
    examples: Any = task.job.identity.get("examples") or ()
    return frozenset(str(example[0]) for example in examples)


def _shares(written: Sequence[str] | None) -> dict[str, float] | None:
    if not written:
        return None
    found = {}
    for text in written:
        label, equals, number = text.rpartition("=")
        try:
            found[label] = float(number)
        except ValueError:
            equals = ""
        if not equals or not label:
            raise UsageError(f"--share {text!r} is not of the form LABEL=SHARE, with a number such as 0.25")
    return found


def make_view(ledger: Ledger, task: TaskRow, options: ViewOptions) -> View:
    """Calibrate the task's finished documents and keep the view. Raises UsageError for tasks and options that cannot be calibrated."""
    labels = labels_of(task)
    found = list(ledger.scored(task.job.name))
    scores = np.array([[row.scores[label] for label in labels] for row in found], dtype=np.float64).reshape(len(found), len(labels))
    gold = _gold_rows([row.id for row in found], options)
    method = options.method
    if method == "auto" and not gold and len(found) < LEAST_BATCH:
        method = "none"
    calibration = calibrate(
        scores, labels, method=method, expected_shares=options.expected_shares, gold=gold or None, seed=options.seed
    )
    chosen = _threshold(calibration, scores, gold, options)
    threshold = options.abstain_below if chosen is None else _ALL_ABSTAINED if chosen.value is None else chosen.value
    states = ledger.states_seen(task.job.name)
    sentence = "; ".join([calibration.sentence, *([chosen.sentence] if chosen else [])])
    facts = {
        "sentence": sentence, "final": not (states["pending"] or states["running"]), "documents": len(found), "gold": len(gold),
        "gold_digest": digest(*(f"{place}={label}" for place, label in sorted(gold.items()))) if gold else None,
    }  # fmt: skip
    return _view(ledger.keep_view(task.job.name, calibration.to_json(), threshold, facts))


def latest_view(ledger: Ledger, task: TaskRow, number: int | None = None) -> View | None:
    """The task's latest view, or the one of that ``number``; None for 0 and where there is none. Raises UsageError for unknown ones."""
    if task.job.kind != "label" or number == 0:
        return None
    kept = ledger.views(task.job.name)
    if number is None:
        return _view(kept[-1]) if kept else None
    if number > len(kept):
        raise UsageError(f"task {task.job.name!r} has no view {number}; it has {len(kept)} (0 is what the model said itself)")
    return _view(kept[number - 1])


def through(rows: Iterable[ExportRow], views: Mapping[str, View]) -> Iterator[ExportRow]:
    """``rows`` with the answers of the viewed tasks as their views show them."""
    iterator = iter(rows)
    while block := list(itertools.islice(iterator, _BLOCK_ROWS)):
        shown = {name: _shown(view, [row.results[name] for row in block]) for name, view in views.items()}
        for place, row in enumerate(block):
            yield replace(row, results={**row.results, **{name: column[place] for name, column in shown.items()}})


def labels_of(task: TaskRow) -> tuple[str, ...]:
    """The labels of a task that chooses one. Raises UsageError for other tasks."""
    definition: Any = task.job.identity.get("task", {})
    if task.job.kind != "label":
        raise UsageError(f"task {task.job.name!r} is of kind {task.job.kind}; only label tasks have scores to calibrate")
    if definition.get("multi"):
        raise UsageError(f"task {task.job.name!r} may give several labels (multi); calibrating those is not available in this version")
    if float(definition.get("score_tolerance") or 0) > 0:
        raise UsageError(
            f"task {task.job.name!r} left labels unscored to save work (score_tolerance {definition['score_tolerance']}); "
            "run it with score_tolerance: 0 to calibrate it"
        )
    return tuple(name for name, _ in definition["labels"])


def _gold_rows(ids: Sequence[str], options: ViewOptions) -> dict[int, str]:
    """Gold labels by row; ids that occur under several texts, and those the model has been shown, are left out."""
    if not options.gold:
        return {}
    places: dict[str, list[int]] = {}
    for place, name in enumerate(ids):
        places.setdefault(name, []).append(place)
    return {
        places[name][0]: label
        for name, label in options.gold.items()
        if len(places.get(name, ())) == 1 and name not in options.unfit
    }  # fmt: skip


def _threshold(calibration: Calibration, scores: Floats, gold: Mapping[int, str], options: ViewOptions) -> Threshold | None:
    """Chosen on labels that had no part in the probabilities they are compared with."""
    if options.target_accuracy is None:
        return None
    if not gold:
        raise UsageError("target_accuracy needs gold labels: give --gold FILE, or abstain_below instead")
    checked = calibration.cross_validation
    if checked is not None:
        rows, logs = list(checked.rows), np.array(checked.held_out)
    else:
        rows = sorted(gold)
        logs = calibration.log_probabilities(scores[rows])
    truth = label_numbers([gold[row] for row in rows], calibration.labels)
    return choose_threshold(np.exp(logs).max(axis=1), logs.argmax(axis=1) == truth, options.target_accuracy)


def _shown(view: View, results: Sequence[TaskResult]) -> list[TaskResult]:
    places = [place for place, result in enumerate(results) if result.state == "done" and result.scores]
    shown = list(results)
    if places:
        for place, result in zip(places, view.apply([results[place] for place in places]), strict=True):
            shown[place] = result
    return shown


def _of(result: TaskResult) -> Mapping[str, float]:
    assert result.scores is not None, "only scored results are shown through a view"
    return result.scores


def _view(row: ViewRow) -> View:
    calibration = Calibration.from_json(row.calibration)
    return View(row.number, calibration, row.threshold, str(row.facts.get("sentence", "")), bool(row.facts.get("final")))
