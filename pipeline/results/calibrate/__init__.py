"""``overnight calibrate``: a new view of a run's labels, by the options and gold labels of a person. What the
end of a run makes by itself: ``configured``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pipeline.errors import UsageError
from pipeline.results.calibrate.making import Method, ViewOptions, make_view
from pipeline.results.gold import Gold, all_files, read_gold
from pipeline.results.gold_store import GoldCounts, keep_given, refresh_configured, with_kept
from pipeline.results.label_view import View, is_multi, label_tasks, labels_of, shown_to_the_model
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskRow

_METHODS = ("auto", "none", "batch", "self_training", "gold")
_BY_GOLD = ("auto", "gold")


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The ``view`` that was made, the number of the one that is shown now (None: answers as they were
    recorded), and the gold labels that there were for it; None where it uses none.
    """

    view: View
    shown: int | None
    gold: GoldCounts | None

    @property
    def is_shown(self) -> bool:
        """Whether the view is the one that is shown."""
        return self.shown == self.view.number


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
    replaces: bool = False,
    show_anyway: bool = False,
) -> dict[str, Calibrated]:
    """A new view of each named label task, or of all, by the gold labels in the files and those that the run
    keeps; the former are kept, too. ``shares`` are written LABEL=SHARE; with ``replaces`` labels given now
    count where others are kept; with ``show_anyway`` a view that answers nobody is shown, too.

    Raises UsageError; what a file or an option cannot be for one of the tasks is found before any of them
    gets a view.
    """
    tasks = label_tasks(ledger, names)
    files = all_files(gold)
    _check(method, files, shares, abstain_below, target_accuracy)
    given = {task.job.name: _given(task, files, label_field) for task in tasks}
    told = refresh_configured(ledger, tasks)
    asked, counts = {}, {}
    for task in tasks:
        name = task.job.name
        known, counts[name] = with_kept(ledger, task, given[name], replaces=replaces)
        known.notes += [told[name]] if name in told else []
        used = known if method in _BY_GOLD or target_accuracy is not None else Gold()
        if method == "gold" and not used:
            raise UsageError("method gold needs gold labels: give --gold FILE")
        asked[name] = ViewOptions(
            method=cast("Method", method),
            expected_shares=_shares(shares),
            abstain_below=abstain_below,
            target_accuracy=target_accuracy,
            gold=used or None,
            unfit=shown_to_the_model(task),
            given=frozenset(given[name]),
        )
    made = {}
    for task in tasks:
        name = task.job.name
        view = make_view(ledger, task, asked[name], show_anyway=show_anyway)
        keep_given(ledger, task, given[name])
        shown = ledger.shown_view(name)
        made[name] = Calibrated(
            view,
            None if shown is None else shown.number,
            None if asked[name].gold is None else counts[name],
        )
    return made


def _given(task: TaskRow, files: Sequence[Path], label_field: str) -> Gold:
    if not files:
        return Gold()
    return read_gold(files, labels_of(task), multi=is_multi(task), label_field=label_field)


def _check(
    method: str,
    gold: Sequence[Path],
    shares: Sequence[str] | None,
    abstain_below: float | None,
    target_accuracy: float | None,
) -> None:
    """Raise UsageError for options that are wrong, or of which one would be idle."""
    if method not in _METHODS:
        raise UsageError(f"method {method!r} is none of {', '.join(_METHODS)}")
    if target_accuracy is not None and abstain_below is not None:
        raise UsageError("--target-accuracy and --abstain-below both set the threshold: keep one of the two")
    if method not in _BY_GOLD and gold and target_accuracy is None:
        raise UsageError(
            f"method {method} uses gold labels for nothing but --target-accuracy: give that, or method gold, "
            f"or leave out --gold"
        )
    if method == "none" and shares:
        raise UsageError("method none uses no --share: leave it out, or choose another method")


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
