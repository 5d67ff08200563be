"""``overnight evaluate``: a run's labels against gold labels, and its summaries against references; facts, tables, plots.

No figure pretends: gold rows that the run does not hold, or that the model was shown as examples, are left out and counted; labels that
a calibration was fitted on are judged by its cross-validation, in which each document's answer comes from a fit without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.assessment_table import counts
from pipeline.errors import UsageError
from pipeline.gold import read_gold
from pipeline.plots import draw, require_plots
from pipeline.quality import metrics
from pipeline.quality.abstain import abstains
from pipeline.quality.calibration import calibrate
from pipeline.quality.scores import Floats, Ints, label_numbers
from pipeline.records import digest
from pipeline.stores.ledger import Ledger
from pipeline.stores.reading import ExportRow, TaskRow
from pipeline.summary_assessment import evaluate_summaries
from pipeline.views import View, latest_view, shown_to_the_model, through

CURVE_POINTS = 200
"""More points of a coverage curve than this are thinned out."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """Documents with a gold label: ``gold`` and ``predicted`` label numbers (-1: abstained), (documents,), probabilities by label."""

    gold: Ints
    probabilities: Floats
    predicted: Ints


@dataclass(frozen=True, slots=True)
class _Fit:
    """What a view has to do with these gold labels. ``judged`` and ``checked`` say what cross-validation tells, where it is needed."""

    basis: str
    notes: list[str]
    judged: _Judged | None = None
    checked: Mapping[str, float] | None = None


def evaluate(
    ledger: Ledger, *, gold: Path | None = None, references: Path | None = None, names: Sequence[str] | None = None,
    view: int | None = None, label_field: str = "label", reference_field: str = "summary",
    plots: Path | None = None, plot_format: str = "png",
) -> dict[str, Any]:  # fmt: skip
    """Facts about every label task (``gold``) and summarize task (``references``), or those of ``names``; ``plots`` is a folder.

    ``view``: the number of the calibration to judge, 0 for the model's own labels; the latest otherwise. Raises UsageError.
    """
    if gold is None and references is None:
        raise UsageError("there is nothing to compare with: give --gold FILE for labels, --references FILE for summaries, or both")
    if plots is not None:
        require_plots(plot_format)
    tasks = _chosen(ledger, names, {"label": gold is not None, "summarize": references is not None})
    facts: dict[str, Any] = {}
    for task in tasks:
        if task.job.kind == "label":
            assert gold is not None, "label tasks are chosen with gold labels only"
            known = read_gold(gold, _labels(task), label_field=label_field)
            facts[task.job.name] = evaluate_labels(ledger, task, known, view)
        else:
            assert references is not None, "summarize tasks are chosen with references only"
            facts[task.job.name] = evaluate_summaries(ledger, task, references, reference_field)
    written = [] if plots is None else draw(facts, plots, plot_format)
    return {"tasks": facts, "plots": [str(path) for path in written]}


def evaluate_labels(ledger: Ledger, task: TaskRow, gold: Mapping[str, str], number: int | None = None) -> dict[str, Any]:
    """Facts about one label task as its view ``number`` shows it. Raises UsageError when no gold document can be judged."""
    labels = _labels(task)
    view = latest_view(ledger, task, number)
    rows, left_out = _matched(ledger, task, gold)
    fit = _fit_of(ledger, task, view, gold)
    facts: dict[str, Any] = {
        "kind": "label", "labels": list(labels), "view": view.number if view else 0, "view_sentence": view.sentence if view else "",
        "gold": len(gold), "left_out": left_out, "basis": fit.basis, "notes": fit.notes,
    }  # fmt: skip
    if fit.checked is not None:
        return facts | {"judged": int(fit.checked["gold"]), "headline": _recorded(fit.checked)}
    judged = fit.judged or _judged(rows, task, view, gold, labels)
    if not len(judged.gold):
        raise UsageError(f"no gold label can be compared with task {task.job.name!r}: {counts(left_out)} of {len(gold):,} gold rows")
    return facts | _measured(judged, labels)


# ── which documents ────────────────────────────────────────────────────────────────────────────────────────────────────


def _chosen(ledger: Ledger, names: Sequence[str] | None, kinds: Mapping[str, bool]) -> list[TaskRow]:
    known = {task.job.name: task for task in ledger.tasks()}
    for name in names or ():
        if name not in known:
            raise UsageError(f"there is no task {name!r}; the run has {', '.join(known)}")
        if not kinds[known[name].job.kind]:
            needed = "--gold" if known[name].job.kind == "label" else "--references"
            raise UsageError(f"task {name!r} is of kind {known[name].job.kind}; to evaluate it, give {needed} FILE")
    chosen = [known[name] for name in names] if names else [task for task in known.values() if kinds[task.job.kind] and not _multi(task)]
    for kind, wanted, option in (("label", kinds["label"], "--gold"), ("summarize", kinds["summarize"], "--references")):
        if wanted and not any(task.job.kind == kind for task in chosen):
            raise UsageError(f"{option} was given, but no task of kind {kind} is to be evaluated (several labels a document cannot be yet)")
    return chosen


def _multi(task: TaskRow) -> bool:
    return bool(task.job.identity.get("task", {}).get("multi"))


def _labels(task: TaskRow) -> tuple[str, ...]:
    if _multi(task):
        raise UsageError(f"task {task.job.name!r} may give several labels (multi); evaluating those is not available in this version")
    return tuple(name for name, _ in task.job.identity["task"]["labels"])


def _matched(ledger: Ledger, task: TaskRow, gold: Mapping[str, str]) -> tuple[list[ExportRow], dict[str, int]]:
    """The finished documents that have a gold label, and how many gold rows are left out, by reason."""
    found: dict[str, dict[str, ExportRow]] = {}
    for row in ledger.rows():
        if row.input.id in gold:
            found.setdefault(row.input.id, {}).setdefault(row.input.work_key(task.job), row)
    shown = shown_to_the_model(task)
    reasons: Counter[str] = Counter()
    kept = []
    for name in gold:
        rows = list(found.get(name, {}).values())
        reason = _reason(rows, task, shown_as_example=name in shown)
        if reason:
            reasons[reason] += 1
        else:
            kept.append(rows[0])
    return kept, dict(reasons)


def _reason(rows: Sequence[ExportRow], task: TaskRow, *, shown_as_example: bool) -> str:
    if not rows:
        return "not in the run"
    if shown_as_example:
        return "shown to the model as examples"
    if len(rows) > 1:
        return "id stands for several texts"
    result = rows[0].results[task.job.name]
    return "" if result.state == "done" and result.probabilities else f"without an answer ({result.state})"


def _judged(rows: Sequence[ExportRow], task: TaskRow, view: View | None, gold: Mapping[str, str], labels: Sequence[str]) -> _Judged:
    name = task.job.name
    results = [(row.input.id, row.results[name]) for row in (through(rows, {name: view}) if view else rows)]
    probabilities = [[(result.probabilities or {})[label] for label in labels] for _, result in results]
    places = {label: place for place, label in enumerate(labels)}
    predicted = [-1 if result.value is None else places[str(result.value)] for _, result in results]
    truth = label_numbers([gold[document] for document, _ in results], labels)
    shape = (len(results), len(labels))
    return _Judged(truth, np.array(probabilities, dtype=np.float64).reshape(shape), np.array(predicted, dtype=np.int64))


# ── labels that a calibration was fitted on ────────────────────────────────────────────────────────────────────────────


def _fit_of(ledger: Ledger, task: TaskRow, view: View | None, gold: Mapping[str, str]) -> _Fit:
    """Whether the view knows these labels already, and what can honestly be said then."""
    kept = ledger.views(task.job.name)[view.number - 1].facts if view else {}
    if view is None or not kept.get("gold_digest"):
        return _Fit("answers", [])
    scored = list(ledger.scored(task.job.name))
    placed = _placed([row.id for row in scored], gold, shown_to_the_model(task))
    same = bool(placed) and kept["gold_digest"] == digest(*(f"{place}={label}" for place, label in sorted(placed.items())))
    if not same:
        known = f"view {view.number} was made with {kept.get('gold', 0):,} gold labels"
        note = f"{known}; as far as they stand in this file too, the figures are too good"
        return _Fit("answers", [note])
    notes = [] if view.threshold is None else ["where the threshold was chosen on these gold labels, the answered part looks too good"]
    if view.calibration.method != "gold":
        return _Fit("answers", notes)
    notes.append(f"view {view.number} was fitted on these very gold labels: the figures are those of cross-validation on them")
    labels = view.calibration.labels
    scores = np.array([[row.scores[label] for label in labels] for row in scored], dtype=np.float64)
    return _cross_validated(view, scores, placed, notes)


def _placed(ids: Sequence[str], gold: Mapping[str, str], shown: frozenset[str]) -> dict[int, str]:
    """Gold labels by row, as a view counts them: ids under several texts and examples have no part. Their order decides the folds."""
    occurrences = Counter(ids)
    places = {name: place for place, name in enumerate(ids)}
    return {places[name]: label for name, label in gold.items() if occurrences[name] == 1 and name not in shown}


def _cross_validated(view: View, scores: Floats, placed: Mapping[int, str], notes: list[str]) -> _Fit:
    """The held-out answers of the fit, made again (it is deterministic); only the figures kept with it where they do not agree."""
    kept = view.calibration.cross_validation
    again = calibrate(scores, view.calibration.labels, method="gold", gold=placed, seed=view.calibration.seed).cross_validation
    assert kept is not None, "a calibration by gold labels is always cross-validated"
    if again is None or abs(again.accuracy - kept.accuracy) > 1e-9 or abs(again.log_loss - kept.log_loss) > 1e-6:
        told = {"accuracy": kept.accuracy, "calibration_error": kept.calibration_error, "gold": len(placed)}
        return _Fit(
            "cross-validation, as recorded", [*notes, "the fit cannot be made again as it was: there are no intervals"], checked=told
        )
    probabilities = np.exp(np.array(again.held_out, dtype=np.float64))
    away = np.zeros(len(probabilities), dtype=np.bool_) if view.threshold is None else abstains(probabilities.max(axis=1), view.threshold)
    truth = label_numbers([placed[row] for row in again.rows], view.calibration.labels)
    predicted = np.where(away, -1, probabilities.argmax(axis=1)).astype(np.int64)
    return _Fit("cross-validation", notes, _Judged(truth, probabilities, predicted))


def _recorded(checked: Mapping[str, float]) -> dict[str, Any]:
    return {name: {"value": checked[name], "low": None, "high": None, "level": None} for name in ("accuracy", "calibration_error")}


# ── figures ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _measured(judged: _Judged, labels: Sequence[str]) -> dict[str, Any]:
    confidence = judged.probabilities.max(axis=1)
    right = judged.probabilities.argmax(axis=1) == judged.gold
    curve = metrics.coverage_curve(confidence, right)
    every = max(1, -(-len(curve) // CURVE_POINTS))
    table = metrics.per_label(judged.predicted, judged.gold, labels)
    answered = int((judged.predicted >= 0).sum())
    return {
        "judged": len(judged.gold), "answered": answered, "abstained": len(judged.gold) - answered,
        "majority_share": float(np.bincount(judged.gold).max() / len(judged.gold)),
        "headline": {name: asdict(interval) for name, interval in _headline(judged, len(labels)).items()},
        "per_label": [asdict(row) | {"precision": row.precision, "recall": row.recall, "f1": row.f1} for row in table],
        "confusion": metrics.confusion(judged.predicted, judged.gold, len(labels)).tolist(),
        "reliability": [asdict(one) for one in metrics.reliability(confidence, right)],
        "coverage_curve": [asdict(point) for place, point in enumerate(curve) if place % every == 0 or place == len(curve) - 1],
    }  # fmt: skip


def _headline(judged: _Judged, label_count: int) -> dict[str, metrics.Interval]:
    """The figures with their bootstrap intervals. Calibration error is over all documents, by the likeliest label, abstained or not."""
    predicted, gold = judged.predicted, judged.gold
    confidence, right = judged.probabilities.max(axis=1), judged.probabilities.argmax(axis=1) == gold
    answered = predicted >= 0
    statistics: dict[str, Callable[[Ints], float]] = {
        "accuracy": lambda drawn: metrics.accuracy(predicted[drawn], gold[drawn]),
        "macro_f1": lambda drawn: metrics.macro_f1(predicted[drawn], gold[drawn], label_count),
        "calibration_error": lambda drawn: metrics.expected_calibration_error(confidence[drawn], right[drawn]),
    }
    if not answered.all():
        statistics["coverage"] = lambda drawn: float(answered[drawn].mean())
        statistics["answered_accuracy"] = lambda drawn: metrics.accuracy(predicted[drawn[answered[drawn]]], gold[drawn[answered[drawn]]])
    return {name: metrics.bootstrap(statistic, len(gold)) for name, statistic in statistics.items()}
