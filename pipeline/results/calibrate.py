"""How views are made: a task's finished documents are calibrated again, over themselves or by gold labels;
the model is not asked.

``overnight calibrate`` makes one when a person asks for it; every run makes one at its end as its
configuration says, and what cannot be calibrated is a sentence in the report, never the end of a night.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from pipeline.errors import OvernightError, UsageError
from pipeline.quality.abstain import Threshold, choose_threshold
from pipeline.quality.calibration import Calibration, calibrate, too_small
from pipeline.quality.features import Features, unpacked
from pipeline.quality.metrics import Bools
from pipeline.quality.scores import Floats, extra, label_numbers
from pipeline.quality.several import SeveralCalibration, calibrate_several
from pipeline.results.gold import Gold, GoldLabel, all_files, read_gold
from pipeline.results.label_view import View, certainty, is_multi, labels_of, shown_to_the_model, view_of
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskRow
from pipeline.tasks.label.section import LabelTask

Method = Literal["auto", "none", "batch", "self_training", "gold"]
_METHODS = ("auto", "none", "batch", "self_training", "gold")
# A threshold that no probability reaches: everything is abstained from.
_ALL_ABSTAINED = 2.0
# A mean over fewer documents says more about them than about the model.
LEAST_BATCH = 32
# More numbers than this are not kept with a view: documents that it was fitted on are then left out when it
# is judged.
_HELD_OUT_NUMBERS = 2_000_000
# Features are standardized over so many documents, spread over the run: a mean over more is no better, and a
# million of them are 1 GB.
_FEATURED_DOCUMENTS = 20_000


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """What a view is asked to be. ``gold`` maps document ids to labels; ``unfit`` are ids whose labels the
    model has been shown.

    ``by`` says who asks: what a person calibrated by gold labels is not replaced by the next run.
    """

    method: Method = "auto"
    expected_shares: Mapping[str, float] | None = None
    gold: Gold | None = None
    unfit: frozenset[str] = frozenset()
    abstain_below: float | None = None
    target_accuracy: float | None = None
    seed: int = 0
    by: Literal["command", "configuration"] = "command"


@dataclass(frozen=True, slots=True)
class _Table:
    """A task's finished documents: their raw scores (documents, labels), the gold labels among them by row,
    and the keys of those.
    """

    keys: Mapping[int, str]
    labels: tuple[str, ...]
    scores: Floats
    multi: bool
    gold: Mapping[int, GoldLabel]
    left_out: Mapping[str, int]
    features: Features | None = None

    @property
    def count(self) -> int:
        """Finished documents."""
        return len(self.scores)

    def log_probabilities(self, calibration: Calibration | SeveralCalibration, rows: Sequence[int]) -> Floats:
        """What ``calibration`` says of gold documents: natural logs, (rows, labels)."""
        features = None
        if self.features is not None:
            features = self.features.values[np.searchsorted(self.features.places, rows)]
        return calibration.log_probabilities(
            self.scores[list(rows)].reshape(len(rows), len(self.labels)), features
        )


def calibrate_run(
    ledger: Ledger,
    *,
    names: Sequence[str] | None = None,
    gold: Path | Sequence[Path] = (),
    label_field: str = "label",
    method: str = "auto",
    shares: Sequence[str] | None = None,
    abstain_below: float | None = None,
    target_accuracy: float | None = None,
) -> dict[str, View]:
    """A new view of each named label task, or of all. ``shares`` are written LABEL=SHARE.

    Raises UsageError; what a file or an option cannot be for one of the tasks is found before any of them
    gets a view.
    """
    known = {task.job.name: task for task in ledger.tasks()}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise UsageError(f"there is no task {unknown[0]!r}; the run has {', '.join(known)}")
    chosen = list(names or (name for name, task in known.items() if task.job.kind == "label"))
    if not chosen:
        raise UsageError("the run has no label task: there is nothing to calibrate")
    if method not in _METHODS:
        raise UsageError(f"method {method!r} is none of {', '.join(_METHODS)}")
    if target_accuracy is not None and abstain_below is not None:
        raise UsageError("--target-accuracy and --abstain-below both set the threshold: keep one of the two")
    if method == "gold" and not gold:
        raise UsageError("method gold needs gold labels: give --gold FILE")
    if method not in ("auto", "gold") and gold and target_accuracy is None:
        raise UsageError(
            f"method {method} uses gold labels for nothing but --target-accuracy: give that, or method gold, "
            f"or leave out --gold"
        )
    if method == "none" and shares:
        raise UsageError("method none uses no --share: leave it out, or choose another method")
    asked = {
        name: ViewOptions(
            method=cast("Method", method),
            expected_shares=_shares(shares),
            abstain_below=abstain_below,
            target_accuracy=target_accuracy,
            gold=None
            if not gold
            else read_gold(all_files(gold), labels_of(task), multi=is_multi(task), label_field=label_field),
            unfit=shown_to_the_model(task),
        )
        for name, task in ((name, known[name]) for name in chosen)
    }
    return {name: make_view(ledger, known[name], options) for name, options in asked.items()}


# ── after a run ─────────────────────────────────────────────────────────────────────────────────────────────


def check_gold(task: LabelTask) -> None:
    """Before a run: the gold labels that its end will calibrate by can be read, and what that needs is
    installed. Raises UsageError.
    """
    if not _uses_gold(task):
        return
    read_gold(task.gold_files, tuple(task.labels), multi=task.multi, label_field=task.label_field)
    if task.examples_per_label is None or task.target_accuracy is not None:
        extra("sklearn")


def as_configured(ledger: Ledger, row: TaskRow, task: LabelTask) -> str:
    """After a run: the view that the task asks for. A sentence about what could not be calibrated, or ""."""
    kept = ledger.views(task.name)
    if kept and kept[-1].facts.get("by") == "command" and view_of(kept[-1]).calibration.method == "gold":
        return f"view {kept[-1].number}, calibrated by gold labels with overnight calibrate, stays in force"
    try:
        return _as_asked(ledger, row, task)
    except OvernightError as error:
        stays = f"; view {kept[-1].number} stays in force" if kept else ""
        if not kept:
            _uncalibrated(ledger, row, task)
        return f"not calibrated: {error}{stays}"


def _as_asked(ledger: Ledger, row: TaskRow, task: LabelTask) -> str:
    """Make the view that the configuration asks for, if any; why it is not calibrated, "" where it is or
    should not be.
    """
    method: Method = "none" if task.calibration == "none" else "auto"
    options = ViewOptions(
        method,
        task.expected_shares,
        _configured_gold(task),
        shown_to_the_model(row),
        task.abstain_below,
        task.target_accuracy,
        by="configuration",
    )
    table = _table(ledger, row, options)
    reason = _why_not(table, task)
    asked = options.abstain_below is not None or options.target_accuracy is not None
    # An earlier view would go on to be shown: where none is asked for any more, the model's own labels are a
    # new one.
    if asked or not (reason or method == "none") or ledger.views(task.name):
        _keep(ledger, row, table, replace(options, method="none") if reason else options)
    return "; ".join([reason, *_left_out(table, options)]) if reason else ""


def _uncalibrated(ledger: Ledger, row: TaskRow, task: LabelTask) -> None:
    """The model's own labels with the threshold asked for; a target accuracy that nothing vouches for leaves
    none.
    """
    threshold = _ALL_ABSTAINED if task.target_accuracy is not None else task.abstain_below
    if threshold is not None:
        options = ViewOptions("none", abstain_below=threshold, by="configuration")
        _keep(ledger, row, _table(ledger, row, options), options)


def _why_not(table: _Table, task: LabelTask) -> str:
    """Why the model's own labels are shown although they should be calibrated; "" otherwise."""
    if task.calibration == "none" or (table.gold if table.multi else _gold_fits(table)):
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


def _gold_fits(table: _Table) -> bool:
    """Whether a calibration of one label a document can be fitted on the gold labels."""
    return not too_small(len(table.gold), len(set(table.gold.values())))


def _uses_gold(task: LabelTask) -> bool:
    return task.gold is not None and (task.calibration != "none" or task.target_accuracy is not None)


def _configured_gold(task: LabelTask) -> Gold | None:
    if task.gold is None or not _uses_gold(task):
        return None
    return read_gold(task.gold_files, tuple(task.labels), multi=task.multi, label_field=task.label_field)


# ── one view ────────────────────────────────────────────────────────────────────────────────────────────────


def make_view(ledger: Ledger, task: TaskRow, options: ViewOptions) -> View:
    """Calibrate the task's finished documents and keep the view. Raises UsageError for tasks and options that
    cannot be calibrated.
    """
    table = _table(ledger, task, options)
    if options.gold and not table.gold:
        raise UsageError(
            f"no gold label can be used for task {task.job.name!r}: {'; '.join(_left_out(table, options))}"
        )
    # Several labels are each left as they are where the gold labels say too little about them.
    usable = (
        bool(table.gold or options.expected_shares)
        if table.multi
        else table.count >= LEAST_BATCH or _gold_fits(table)
    )
    note = ""
    if options.method == "auto" and not usable:
        options = replace(options, method="none")
        note = too_small(len(table.gold), len(set(table.gold.values()))) if table.gold else ""
    return _keep(ledger, task, table, options, note)


def _keep(ledger: Ledger, task: TaskRow, table: _Table, options: ViewOptions, note: str = "") -> View:
    """``note`` is one more thing that its sentence says."""
    if options.method != "none":
        _refuse_unscored(task, table)
    calibration = _calibrated(table, options)
    held_out = _held_out(table, calibration)
    chosen = _threshold(table, calibration, held_out, options)
    threshold = (
        options.abstain_below
        if chosen is None
        else _ALL_ABSTAINED
        if chosen.value is None
        else _just_below(chosen.value)
    )
    said = [calibration.sentence, note, chosen.sentence if chosen else "", *_left_out(table, options)]
    sentence = "; ".join(part for part in said if part)
    keepable = len(held_out) * len(table.labels) <= _HELD_OUT_NUMBERS
    kept = {table.keys[row]: logs.tolist() for row, logs in held_out.items()} if keepable else {}
    facts = {
        "sentence": sentence,
        "final": _all_are_in(ledger, task.job.name),
        "documents": table.count,
        "by": options.by,
        "gold": len(table.gold),
        "left_out": dict(table.left_out),
        "gold_labels": {table.keys[row]: _plain(label) for row, label in table.gold.items()},
        "held_out": kept,
    }
    return view_of(ledger.keep_view(task.job.name, calibration.to_json(), threshold, facts))


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


def _table(ledger: Ledger, task: TaskRow, options: ViewOptions) -> _Table:
    labels = labels_of(task)
    wanted = not is_multi(task) and options.method in ("auto", "self_training", "gold")
    scores, named, features = _found(ledger, task, labels, options.gold or {}, with_features=wanted)
    gold, left_out = _gold_rows(named, options)
    keys = {row: key for found in named.values() for row, key in found}
    return _Table(keys, labels, scores, is_multi(task), gold, left_out, features)


def _found(
    ledger: Ledger,
    task: TaskRow,
    labels: Sequence[str],
    gold: Mapping[str, GoldLabel],
    *,
    with_features: bool,
) -> tuple[Floats, dict[str, list[tuple[int, str]]], Features | None]:
    """Scores of the finished documents; row and key of those that ``gold`` names, by id; and if all have
    features, those of the gold documents and of a share of the others. Of a document that gold does not name
    nothing but its numbers stays in memory.
    """
    every = max(1, -(-ledger.status().tasks[task.job.name]["done"] // _FEATURED_DOCUMENTS))
    numbers = array("d")
    named: dict[str, list[tuple[int, str]]] = {}
    kept: dict[int, bytes] = {}
    complete = with_features
    for place, row in enumerate(ledger.scored(task.job.name, with_features=with_features)):
        complete &= bool(row.features)
        if complete and (row.id in gold or place % every == 0):
            kept[place] = row.features
        if row.id in gold:
            named.setdefault(row.id, []).append((place, row.document_key))
        numbers.extend(row.scores[label] for label in labels)
    values = unpacked(list(kept.values())) if complete else None
    features = None if values is None else Features(np.array(list(kept)), values)
    return np.frombuffer(numbers, dtype=np.float64).reshape(-1, len(labels)), named, features


def _gold_rows(
    named: Mapping[str, Sequence[tuple[int, str]]], options: ViewOptions
) -> tuple[dict[int, GoldLabel], dict[str, int]]:
    """Gold labels by row, in the rows' order, and how many are left out, by reason."""
    kept: dict[int, GoldLabel] = {}
    reasons: Counter[str] = Counter()
    for name, label in (options.gold or {}).items():
        rows = named.get(name, ())
        if name in options.unfit:
            reasons["shown to the model as examples"] += 1
        elif len(rows) != 1:
            reasons[
                "of ids that stand for several texts" if rows else "not among the finished documents"
            ] += 1
        else:
            kept[rows[0][0]] = label
    return dict(sorted(kept.items())), dict(reasons)


def _left_out(table: _Table, options: ViewOptions) -> list[str]:
    gold = options.gold
    if gold is None:
        return []
    told = gold.told_unused()
    if table.left_out:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in table.left_out.items())
        told.append(f"of {len(gold):,} gold labels left out: {reasons}")
    return [*told, *filter(None, [gold.no_sample(gold.keys() if table.gold else ())])]


def _refuse_unscored(task: TaskRow, table: _Table) -> None:
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


def _calibrated(table: _Table, options: ViewOptions) -> Calibration | SeveralCalibration:
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


def _held_out(table: _Table, calibration: Calibration | SeveralCalibration) -> dict[int, Floats]:
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
    table: _Table,
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


def _right(odds: Floats, table: _Table) -> Bools:
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


def _shares(written: Sequence[str] | None) -> dict[str, float] | None:
    if not written:
        return None
    found: dict[str, Any] = {}
    for text in written:
        label, equals, number = text.rpartition("=")
        try:
            found[label] = float(number)
        except ValueError:
            equals = ""
        if not equals or not label:
            raise UsageError(f"--share {text!r} is not of the form LABEL=SHARE, with a number such as 0.25")
    return found
