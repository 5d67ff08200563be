"""A run's labels against gold labels.

No figure pretends: gold rows that the run does not hold, or that the model was shown as examples, are left
out and counted; documents whose labels a calibration was fitted on are judged by its cross-validation, in
which each one's answer comes from a fit without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.errors import UsageError
from pipeline.quality.scores import Floats, label_numbers
from pipeline.results.evaluate.figures import Judged, JudgedSeveral
from pipeline.results.evaluate.table import counts, share
from pipeline.results.gold import Gold, GoldLabel
from pipeline.results.label_view import View, is_multi, labels_of, shown_to_the_model, view_in_force
from pipeline.results.views import said, through
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import ExportRow, TaskResult, TaskRow
from pipeline.system.escape import escape


def evaluate_labels(ledger: Ledger, task: TaskRow, gold: Gold, number: int | None = None) -> dict[str, Any]:
    """Facts about one label task as its view ``number`` shows it. Raises UsageError when no gold document can
    be judged.
    """
    labels = labels_of(task)
    view = view_in_force(ledger, task, number)
    rows, left_out = _matched(ledger, task, gold, view)
    left_out = {**gold.unused, **left_out}
    no_sample = gold.no_sample({row.input.id for row in rows})
    checked = sum(view is not None and row.input.document_key in view.held_out for row in rows)
    facts: dict[str, Any] = {
        "kind": "label",
        "labels": list(labels),
        "multi": is_multi(task),
        "view": view.number if view else 0,
        "view_sentence": view.sentence if view else "",
        "gold": len(gold),
        "left_out": left_out,
        "basis": "answers"
        if not checked
        else "cross-validation"
        if checked == len(rows)
        else "answers and cross-validation",
        "cross_validated": checked,
        "notes": [*gold.notes, *_notes(view, rows, checked), *([no_sample] if no_sample else [])],
    }
    if not rows:
        raise UsageError(
            f"no gold label can be compared with task {task.job.name!r}: {counts(left_out)} of "
            f"{len(gold):,} gold rows"
        )
    shown = (
        through(rows, {task.job.name: view}) if view else said(rows, [task]) if number == 0 else iter(rows)
    )
    results = [_as_checked(view, row, row.results[task.job.name]) for row in shown]
    probabilities = np.array(
        [[(result.probabilities or {})[label] for label in labels] for result in results], dtype=np.float64
    )
    truth = [gold[row.input.id] for row in rows]
    return facts | _judged(results, probabilities, truth, labels, multi=is_multi(task)).figures(labels)


# ── which documents ─────────────────────────────────────────────────────────────────────────────────────────


def _matched(
    ledger: Ledger, task: TaskRow, gold: Mapping[str, GoldLabel], view: View | None
) -> tuple[list[ExportRow], dict[str, int]]:
    """The finished documents that have a gold label and can be judged by it, and how many gold rows are left
    out, by reason.
    """
    found: dict[str, dict[str, ExportRow]] = {}
    for row in ledger.rows():
        if row.input.id in gold:
            found.setdefault(row.input.id, {}).setdefault(row.input.work_key(task.job), row)
    shown = shown_to_the_model(task)
    reasons: Counter[str] = Counter()
    kept = []
    for name in gold:
        rows = list(found.get(name, {}).values())
        reason = _reason(rows, task, view, shown_as_example=name in shown)
        if reason:
            reasons[reason] += 1
        else:
            kept.append(rows[0])
    return kept, dict(reasons)


def _reason(rows: Sequence[ExportRow], task: TaskRow, view: View | None, *, shown_as_example: bool) -> str:
    if not rows:
        return "not in the run"
    if shown_as_example:
        return "shown to the model as examples"
    if len(rows) > 1:
        return "id stands for several texts"
    result, key = rows[0].results[task.job.name], rows[0].input.document_key
    if result.state != "done" or not result.probabilities:
        return f"without an answer ({result.state})"
    unjudged = view is not None and key in view.fitted_on and key not in view.held_out
    return "known to the calibration, whose cross-validation is not kept" if unjudged else ""


def _notes(view: View | None, rows: Sequence[ExportRow], checked: int) -> list[str]:
    """What these figures must be read with."""
    if view is None or not view.gold_labels:
        return []
    notes = [f"view {view.number} was made with {len(view.gold_labels):,} gold labels"]
    if checked:
        notes.append(
            f"{checked:,} of the {len(rows):,} documents compared are among them: they are judged by "
            f"cross-validation"
        )
    if view.threshold is not None and any(row.input.document_key in view.gold_labels for row in rows):
        notes.append("where the threshold was chosen on these gold labels, the answered part looks too good")
    return notes


# ── their answers ───────────────────────────────────────────────────────────────────────────────────────────


def _as_checked(view: View | None, row: ExportRow, result: TaskResult) -> TaskResult:
    """The document's answer; of one that the view was fitted on, what a fit without it gives."""
    logs = None if view is None else view.held_out.get(row.input.document_key)
    if view is None or logs is None:
        return result
    odds = np.exp(np.array(logs, dtype=np.float64))
    value, gone = view.decide(odds)
    return TaskResult(
        result.state,
        None if gone else value,
        "abstained" if gone else "stop",
        dict(zip(view.calibration.labels, odds.tolist(), strict=True)),
    )


def _judged(
    results: Sequence[TaskResult],
    probabilities: Floats,
    truth: Sequence[GoldLabel],
    labels: Sequence[str],
    *,
    multi: bool,
) -> Judged | JudgedSeveral:
    if not multi:
        places = {label: place for place, label in enumerate(labels)}
        predicted = [-1 if result.value is None else places[str(result.value)] for result in results]
        return Judged(
            label_numbers([str(label) for label in truth], labels),
            probabilities,
            np.array(predicted, dtype=np.int64),
        )
    gold = np.array([[label in named for label in labels] for named in truth], dtype=np.bool_)
    given = np.array(
        [[label in (result.value or ()) for label in labels] for result in results], dtype=np.bool_
    )
    return JudgedSeveral(
        gold, probabilities, given, np.array([result.value is not None for result in results], dtype=np.bool_)
    )


# ── as lines ────────────────────────────────────────────────────────────────────────────────────────────────


def heading(found: Mapping[str, Any]) -> list[str]:
    """Lines over the figures: through which view, how many, how many were abstained from."""
    view = (
        f"view {found['view']}: {found['view_sentence']}"
        if found["view"]
        else "the model's own labels, uncalibrated"
    )
    spread = (
        f"they have {found['labels_per_document']:.2f} labels on average"
        if found["multi"]
        else f"the most frequent label has {found['majority_share']:.1%} of them"
    )
    compared = f"{found['judged']:,} documents compared, {found['abstained']:,} of them abstained from; "
    return [view, compared + spread]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line a label."""
    if not rows:
        return []
    width = max(5, *(len(row["label"]) for row in rows))
    lines = ["", f"{'label':<{width}}  {'gold':>6}  {'given':>6}  {'right':>6}  precision  recall     f1"]
    for row in rows:
        shares = f"{share(row['precision']):>9}  {share(row['recall']):>6}  {share(row['f1']):>5}"
        lines.append(
            f"{row['label']:<{width}}  {row['gold']:>6,}  {row['predicted']:>6,}  {row['right']:>6,}  "
            f"{shares}"
        )
    return lines


def markdown_heading(found: Mapping[str, Any]) -> list[str]:
    """The same as points of a list in the report."""
    gone = f", {found['abstained']:,} of them abstained from" if found.get("abstained") else ""
    view = (
        f"- view {found['view']}: {escape(found['view_sentence'], 2000)}"
        if found["view"]
        else "- the model's own labels"
    )
    return [f"- {found['judged']:,} documents compared{gone}", view]


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row a label."""
    if not rows:
        return []
    lines = [
        "| label | gold | given | right | precision | recall | F1 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        shares = " | ".join(
            "" if row[name] is None else f"{row[name]:.3f}" for name in ("precision", "recall", "f1")
        )
        lines.append(
            f"| {escape(row['label'])} | {row['gold']:,} | {row['predicted']:,} | {row['right']:,} | "
            f"{shares} |"
        )
    return [*lines, ""]
