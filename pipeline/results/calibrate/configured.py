"""The view that a run makes at its end, as its configuration says. What cannot be calibrated is a sentence in
the report, never the end of a night.

What a person has chosen, or calibrated by gold labels, stays. A target accuracy is a promise to whoever uses
the table in the morning: where nothing keeps it any more, an earlier view that was made for it stays, and
where there is none, nothing is answered; either is said.
"""

from __future__ import annotations

from dataclasses import replace

from pipeline.errors import OvernightError
from pipeline.quality.scores import extra
from pipeline.results.calibrate.making import (
    ALL_ABSTAINED,
    LEAST_BATCH,
    Method,
    ViewOptions,
    gold_fits,
    keep_made,
    left_out,
    table_for,
)
from pipeline.results.calibrate.table import Table
from pipeline.results.gold import Gold, read_gold
from pipeline.results.gold_store import take_in_configured
from pipeline.results.label_view import View, shown_to_the_model, view_in_force
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskRow
from pipeline.stores.ledger.view_rows import ShownView
from pipeline.tasks.label.section import LabelTask


def check_gold(task: LabelTask) -> None:
    """Before a run: the gold labels that its end will calibrate by can be read, and what that needs is
    installed. Raises UsageError.
    """
    if task.gold is None or not _uses_gold(task):
        return
    read_gold(task.gold_files, tuple(task.labels), multi=task.multi, label_field=task.label_field)
    if task.examples_per_label is None or task.target_accuracy is not None:
        extra("sklearn")


def as_configured(ledger: Ledger, row: TaskRow, task: LabelTask) -> str:
    """After a run: the view that the task asks for. A sentence about what could not be calibrated, what is
    not answered, or what stays in force all the same; or "".
    """
    shown = ledger.shown_view(task.name)
    if shown is not None and shown.held:
        return (
            f"{_held(shown)}, stays in force; overnight views RUN_DIR --as-configured leaves it to the "
            f"configuration again"
        )
    try:
        return _as_asked(ledger, row, task)
    except OvernightError as error:
        stays = _keeps_the_promise(ledger, row, task)
        if stays is not None:
            return f"not calibrated: {error}; view {stays.number} stays in force"
        told = _uncalibrated(ledger, row, task)
        return "; ".join(filter(None, [f"not calibrated: {error}", told]))


def _held(shown: ShownView) -> str:
    if shown.by == "choice":
        return f"{_spoken(shown.number)}, chosen with overnight views"
    return f"{_spoken(shown.number)}, calibrated by gold labels with overnight calibrate"


def _spoken(number: int) -> str:
    return f"view {number}" if number else "view 0, what the model said itself"


def _as_asked(ledger: Ledger, row: TaskRow, task: LabelTask) -> str:
    """Make the view that the configuration asks for, if any, and show it. What must be said of it, or ""."""
    method: Method = "none" if task.calibration == "none" else "auto"
    options = ViewOptions(
        method,
        task.expected_shares,
        _gold(ledger, row, task),
        shown_to_the_model(row),
        task.abstain_below,
        task.target_accuracy,
        by="configuration",
    )
    table = table_for(ledger, row, options)
    reason = _why_not(table, task)
    told = [reason, *left_out(table, options)] if reason else []
    asked = options.abstain_below is not None or options.target_accuracy is not None
    # An earlier view would go on to be shown: where none is asked for any more, the model's own labels are a
    # new one.
    if asked or not (reason or method == "none") or ledger.shown_view(task.name) is not None:
        view = keep_made(ledger, row, table, replace(options, method="none") if reason else options)
        told.append(_show(ledger, row, task, view))
    return "; ".join(filter(None, told))


def _show(ledger: Ledger, row: TaskRow, task: LabelTask, view: View) -> str:
    """Show a view that was made as the configuration says; a sentence where it answers nobody."""
    if view.answers_nobody:
        stays = _keeps_the_promise(ledger, row, task) if task.target_accuracy is not None else None
        if stays is not None:
            return (
                f"view {view.number} would answer no document; view {stays.number}, whose target accuracy is "
                f"{stays.target_accuracy:.1%}, stays in force"
            )
    ledger.show_view(task.name, view.number, "configuration", held=False)
    if not view.answers_nobody:
        return ""
    key = "abstain_below" if task.target_accuracy is None else "target_accuracy"
    return (
        f"no document is answered, as {key} asks for it (view {view.number}); what the model said itself is "
        f"view 0, and overnight views RUN_DIR shows all"
    )


def _keeps_the_promise(ledger: Ledger, row: TaskRow, task: LabelTask) -> View | None:
    """The view that is shown, if it answers at least as rightly as the configuration promises."""
    view = view_in_force(ledger, row)
    if view is None or not view.number:
        return None
    if task.target_accuracy is None:
        return view
    kept = not view.answers_nobody and (view.target_accuracy or 0) >= task.target_accuracy
    return view if kept else None


def _uncalibrated(ledger: Ledger, row: TaskRow, task: LabelTask) -> str:
    """Show the model's own labels with the threshold asked for; a target accuracy that nothing vouches for
    leaves none. What must be said of it.
    """
    threshold = ALL_ABSTAINED if task.target_accuracy is not None else task.abstain_below
    if threshold is None:
        return ""
    options = ViewOptions("none", abstain_below=threshold, by="configuration")
    return _show(ledger, row, task, keep_made(ledger, row, table_for(ledger, row, options), options))


def _why_not(table: Table, task: LabelTask) -> str:
    """Why the model's own labels are shown although they should be calibrated; "" otherwise."""
    if task.calibration == "none" or (table.gold if table.multi else gold_fits(table)):
        return ""
    if table.multi and task.expected_shares is None:
        return (
            "not calibrated: with several labels a document that needs gold labels, or expected_shares "
            "(each label's own share)"
        )
    if table.count < LEAST_BATCH:
        return (
            f"not calibrated: {table.count:,} documents are finished, and over the batch at least "
            f"{LEAST_BATCH} are needed"
        )
    return ""


def _uses_gold(task: LabelTask) -> bool:
    """Whether gold labels have a part in the view that the configuration asks for."""
    return task.calibration != "none" or task.target_accuracy is not None


def _gold(ledger: Ledger, row: TaskRow, task: LabelTask) -> Gold | None:
    """What the view is made by: the labels of the configuration's files, and those that people gave."""
    if not _uses_gold(task):
        return None
    found = take_in_configured(ledger, row, task)
    return found if found or task.gold_files else None
