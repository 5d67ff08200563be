"""How a view is made: a task's finished documents are calibrated again, over themselves or by gold labels;
the model is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pipeline.errors import UsageError
from pipeline.quality.abstain import Threshold, choose_threshold
from pipeline.quality.calibration import Calibration, calibrate, too_small
from pipeline.quality.metrics import Bools
from pipeline.quality.scores import Floats, label_numbers
from pipeline.quality.several import SeveralCalibration, calibrate_several
from pipeline.results.calibrate.table import Table, read_table
from pipeline.results.gold import Gold, GoldLabel
from pipeline.results.label_view import View, certainty, is_multi, view_of
from pipeline.results.views import through
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskRow
from pipeline.stores.ledger.view_rows import ViewRow

Method = Literal["auto", "none", "batch", "self_training", "gold"]
ALL_ABSTAINED = 2.0
"""A threshold that no probability reaches: everything is abstained from."""
LEAST_BATCH = 32
"""A mean over fewer documents says more about them than about the model."""

# More numbers than this are not kept with a view: documents that it was fitted on are then left out when it
# is judged.
_HELD_OUT_NUMBERS = 2_000_000


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """What a view is asked to be. ``gold`` maps document ids to labels, those of the ids ``given`` by the
    command that asks; ``unfit`` are ids whose labels the model has been shown. ``by`` says who asks.
    """

    method: Method = "auto"
    expected_shares: Mapping[str, float] | None = None
    gold: Gold | None = None
    unfit: frozenset[str] = frozenset()
    abstain_below: float | None = None
    target_accuracy: float | None = None
    seed: int = 0
    by: Literal["command", "configuration"] = "command"
    given: frozenset[str] = frozenset()


def make_view(ledger: Ledger, task: TaskRow, options: ViewOptions, *, show_anyway: bool = False) -> View:
    """Calibrate the task's finished documents, keep the view and show it; one that answers nobody only with
    ``show_anyway``. Raises UsageError for tasks and options that cannot be calibrated.
    """
    table = table_for(ledger, task, options)
    _refuse_idle_gold(task, table, options)
    # Several labels are each left as they are where the gold labels say too little about them.
    usable = (
        bool(table.gold or options.expected_shares)
        if table.multi
        else table.count >= LEAST_BATCH or gold_fits(table)
    )
    note = ""
    if options.method == "auto" and not usable:
        options = replace(options, method="none")
        note = too_small(len(table.gold), len(set(table.gold.values()))) if table.gold else ""
    view = keep_made(ledger, task, table, options, note)
    if show_anyway or not view.answers_nobody:
        # what a person calibrated by gold labels is not replaced by the next run
        ledger.show_view(task.job.name, view.number, "command", held=view.calibration.method == "gold")
    return view


def table_for(ledger: Ledger, task: TaskRow, options: ViewOptions) -> Table:
    """What the view is made of."""
    wanted = not is_multi(task) and options.method in ("auto", "self_training", "gold")
    return read_table(ledger, task, options.gold, options.unfit, with_features=wanted)


def gold_fits(table: Table) -> bool:
    """Whether a calibration of one label a document can be fitted on the gold labels."""
    return not too_small(len(table.gold), len(set(table.gold.values())))


def _refuse_idle_gold(task: TaskRow, table: Table, options: ViewOptions) -> None:
    """Raise UsageError where none of the gold labels given now can be used, or method gold finds none."""
    gold = options.gold
    if gold is None or not (options.given or options.method == "gold"):
        return
    asked = options.given or frozenset(gold)
    if not asked & {table.ids[row] for row in table.gold}:
        told = [*gold.told(), *_left_out_of(len(asked), table.left_out(asked))]
        raise UsageError(f"no gold label can be used for task {task.job.name!r}: {'; '.join(told)}")


def keep_made(ledger: Ledger, task: TaskRow, table: Table, options: ViewOptions, note: str = "") -> View:
    """Make a view and keep it, without showing it. ``note`` is one more thing that its sentence says. Raises
    UsageError.
    """
    if options.method != "none":
        _refuse_unscored(task, table)
    calibration = _calibrated(table, options)
    held_out = _held_out(table, calibration)
    chosen = _threshold(table, calibration, held_out, options)
    threshold = (
        options.abstain_below
        if chosen is None
        else ALL_ABSTAINED
        if chosen.value is None
        else _just_below(chosen.value)
    )
    said = [calibration.sentence, note, chosen.sentence if chosen else "", *left_out(table, options)]
    sentence = "; ".join(part for part in said if part)
    keepable = len(held_out) * len(table.labels) <= _HELD_OUT_NUMBERS
    kept = {table.keys[row]: logs.tolist() for row, logs in held_out.items()} if keepable else {}
    facts: dict[str, Any] = {
        "sentence": sentence,
        "final": _all_are_in(ledger, task.job.name),
        "documents": table.count,
        "by": options.by,
        "gold": len(table.gold),
        "left_out": table.left_out(),
        "gold_labels": {table.keys[row]: _plain(label) for row, label in table.gold.items()},
        "held_out": kept,
    }
    if options.target_accuracy is not None:
        facts["target_accuracy"] = options.target_accuracy
    made = calibration.to_json()
    if table.count and _answers_nobody(ledger, task, view_of(ViewRow(0, 0.0, made, threshold, facts))):
        facts["answers_nobody"] = True
    return view_of(ledger.keep_view(task.job.name, made, threshold, facts))


def _answers_nobody(ledger: Ledger, task: TaskRow, view: View) -> bool:
    """Whether ``view`` abstains from all finished documents."""
    if view.threshold is None or view.threshold > 1:
        return view.threshold is not None
    name = task.job.name
    shown = (row.results[name] for row in through(ledger.rows(), {name: view}))
    return all(result.value is None for result in shown if result.state == "done")


def _just_below(threshold: float) -> float:
    """So that the document whose probability it is stays answered, whatever the last digit that is computed
    for it.
    """
    return math.floor(threshold * 1e9 - 1) / 1e9


def _all_are_in(ledger: Ledger, task: str) -> bool:
    """Whether the source was read to its end, and the task waits for none of its documents."""
    status = ledger.status()
    states = status.tasks[task]
    return status.read_completely and not (states["pending"] or states["running"])


def _plain(label: GoldLabel) -> str | list[str]:
    return label if isinstance(label, str) else list(label)


def left_out(table: Table, options: ViewOptions) -> list[str]:
    """What is said of the gold labels that a view was to be made by: which are not used, and what the others
    are no sample of.
    """
    gold = options.gold
    if gold is None:
        return []
    no_sample = gold.no_sample({table.ids[row] for row in table.gold})
    return [*gold.told(), *_left_out_of(len(gold), table.left_out()), *filter(None, [no_sample])]


def _left_out_of(count: int, reasons: Mapping[str, int]) -> list[str]:
    if not reasons:
        return []
    told = ", ".join(f"{left:,} {reason}" for reason, left in reasons.items())
    return [f"of {count:,} gold labels left out: {told}"]


def _refuse_unscored(task: TaskRow, table: Table) -> None:
    """With a tolerance above 0, a label may have been left at a bound: never one whose probability is above
    the tolerance.

    So the recorded numbers themselves tell which scores are certainly the model's own. Raises UsageError
    where one may not be.
    """
    tolerance = float(task.job.identity["task"].get("score_tolerance") or 0)
    if tolerance <= 0 or not len(table.scores):
        return
    odds = np.exp(
        table.scores
        if table.multi
        else table.scores - np.logaddexp.reduce(table.scores, axis=1, keepdims=True)
    )
    least = np.minimum(odds, 1 - odds) if table.multi else odds
    count = int((least <= tolerance * (1 + 1e-6)).any(axis=1).sum())
    if count:
        raise UsageError(
            f"task {task.job.name!r} may have left labels of {count:,} of {len(odds):,} documents "
            f"unscored to save work (score_tolerance "
            f"{tolerance:g}), so they cannot be calibrated; run it with score_tolerance: 0, or show the "
            f"model's own labels with method none"
        )


def _calibrated(table: Table, options: ViewOptions) -> Calibration | SeveralCalibration:
    # Gold labels that a method does not fit (none, batch) may still set a threshold.
    method = options.method
    shares = None if method == "none" else options.expected_shares
    if table.multi:
        named = {row: label for row, label in table.gold.items() if not isinstance(label, str)}
        if method == "self_training":
            raise UsageError(
                "self_training is for tasks that choose one label; with several labels a document give "
                "gold labels"
            )
        if method == "auto" and not table.gold:
            method = "none" if shares is None else "batch"
        return calibrate_several(
            table.scores, table.labels, method=method, expected_shares=shares, gold=named, seed=options.seed
        )
    single = {row: label for row, label in table.gold.items() if isinstance(label, str)}
    return calibrate(
        table.scores,
        table.labels,
        method=method,
        expected_shares=shares,
        gold=single or None,
        features=table.features,
        seed=options.seed,
    )


def _held_out(table: Table, calibration: Calibration | SeveralCalibration) -> dict[int, Floats]:
    """What fits without each of the documents that it was fitted on say of them, by row: natural logs,
    (labels,).

    Rounded as they are kept, so that a threshold chosen by them answers the same documents when they are
    judged.
    """
    if isinstance(calibration, SeveralCalibration):
        found = zip(calibration.fitted_rows, calibration.held_out(table.scores), strict=True)
    else:
        checked = calibration.cross_validation
        found = (
            zip(checked.rows, np.array(checked.held_out), strict=True)
            if checked is not None
            else zip((), (), strict=True)
        )
    return {row: np.round(logs, 6) for row, logs in found}


def _threshold(
    table: Table,
    calibration: Calibration | SeveralCalibration,
    held_out: Mapping[int, Floats],
    options: ViewOptions,
) -> Threshold | None:
    """Chosen on labels that had no part in the probabilities they are compared with. Several labels are right
    when all of them are.
    """
    if options.target_accuracy is None:
        return None
    if options.gold is None:
        raise UsageError("target_accuracy needs gold labels: give --gold FILE, or abstain_below instead")
    rows = list(table.gold)
    plain = table.log_probabilities(calibration, rows)
    odds = np.exp(
        np.array([held_out.get(row, logs) for row, logs in zip(rows, plain, strict=True)]).reshape(
            plain.shape
        )
    )
    return choose_threshold(certainty(odds, multi=table.multi), _right(odds, table), options.target_accuracy)


def _right(odds: Floats, table: Table) -> Bools:
    if not len(odds):
        return np.zeros(0, dtype=np.bool_)
    found: Bools
    if table.multi:
        truth = np.array([[label in named for label in table.labels] for named in table.gold.values()])
        found = ((odds >= 0.5) == truth).all(axis=1)
    else:
        found = odds.argmax(axis=1) == label_numbers(
            [str(label) for label in table.gold.values()], table.labels
        )
    return found
