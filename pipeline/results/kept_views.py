"""``overnight views``: which views of a label task there are, what each of them is, which one is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.errors import UsageError
from pipeline.results.label_view import View, kept_view, label_tasks, view_of
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskRow
from pipeline.stores.ledger.view_rows import ShownView, ViewRow
from pipeline.system.units import moment


def list_views(ledger: Ledger, names: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """By label task: the number of the view that is ``shown`` (null: answers as they were recorded), who said
    so, whether it is held, and its ``views``, latest first. Raises UsageError.
    """
    return {task.job.name: _listed(ledger, task) for task in label_tasks(ledger, names)}


def _listed(ledger: Ledger, task: TaskRow) -> dict[str, Any]:
    views = [_summary(row) for row in reversed(ledger.views(task.job.name))]
    return {**_shown(ledger.shown_view(task.job.name)), "views": views}


def _shown(shown: ShownView | None) -> dict[str, Any]:
    if shown is None:
        return {"shown": None, "by": None, "held": False}
    return {"shown": shown.number, "by": shown.by, "held": shown.held}


def _summary(row: ViewRow) -> dict[str, Any]:
    view = view_of(row)
    return {
        "view": row.number,
        "method": view.calibration.method,
        "made": moment(row.created_at),
        "by": row.facts.get("by"),
        "gold": len(view.gold_labels),
        "threshold": view.threshold,
        "target_accuracy": view.target_accuracy,
        "answers_nobody": view.answers_nobody,
        "final": view.final,
    }


def describe_view(ledger: Ledger, task: TaskRow, number: int) -> dict[str, Any]:
    """All that a view is, but for its weights. Raises UsageError where there is none of that number."""
    row = kept_view(ledger, task, number)
    view, shown = view_of(row), ledger.shown_view(task.job.name)
    return {
        "task": task.job.name,
        **_summary(row),
        "shown": shown is not None and shown.number == number,
        "documents": row.facts.get("documents"),
        "left_out": row.facts.get("left_out") or {},
        "labels": list(view.calibration.labels),
        "cross_validation": _cross_validation(view),
        "sentence": view.sentence,
    }


def _cross_validation(view: View) -> dict[str, Any] | None:
    """Figures of the whole calibration; of labels that are calibrated each by itself there are none."""
    checked = None if view.multi else getattr(view.calibration, "cross_validation", None)
    if checked is None:
        return None
    return {
        "accuracy": checked.accuracy,
        "calibration_error": checked.calibration_error,
        "log_loss": checked.log_loss,
        "folds": checked.folds,
    }


def choose_view(ledger: Ledger, task: TaskRow, number: int) -> None:
    """Show the view of that number, 0 for what the model said itself, until a person says otherwise. Raises
    UsageError where there is none.
    """
    if number:
        kept_view(ledger, task, number)
    ledger.show_view(task.job.name, number, "choice", held=True)


def leave_to_configuration(ledger: Ledger, task: TaskRow) -> None:
    """What is shown stays until the end of the next run, which shows what its configuration asks for."""
    shown = ledger.shown_view(task.job.name)
    if shown is not None:
        ledger.show_view(task.job.name, shown.number, shown.by, held=False)


def delete_views(ledger: Ledger, task: TaskRow, numbers: Sequence[int]) -> int | None:
    """Forget views. Where the one shown is among them, the latest of the others that answers anybody is shown
    from now on, or what the model said itself (0): its number; None where nothing else is shown than before.
    Raises UsageError.
    """
    if 0 in numbers:
        raise UsageError("view 0 is what the model said itself; it cannot be deleted")
    for number in numbers:
        kept_view(ledger, task, number)
    shown = ledger.shown_view(task.job.name)
    instead = None
    if shown is not None and shown.number in numbers:
        left = [view_of(row) for row in ledger.views(task.job.name) if row.number not in numbers]
        instead = next((view.number for view in reversed(left) if not view.answers_nobody), 0)
        ledger.show_view(task.job.name, instead, "command", held=False)
    for number in dict.fromkeys(numbers):
        ledger.delete_view(task.job.name, number)
    return instead
