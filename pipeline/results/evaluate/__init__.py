"""``overnight evaluate``: a run's answers against true ones, of a file or kept in the run, or against texts
that somebody has written; facts, tables, plots. How a kind's answers are judged, the kind says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.results.gold import all_files
from pipeline.results.plots import draw, require_plots
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskRow
from pipeline.tasks.answers import Judge, Wanted
from pipeline.tasks.registry import answers_of, kinds


def evaluate(
    ledger: Ledger,
    *,
    gold: Path | Sequence[Path] = (),
    references: Path | Sequence[Path] = (),
    names: Sequence[str] | None = None,
    view: int | None = None,
    label_field: str = "label",
    reference_field: str = "summary",
    plots: Path | None = None,
    plot_format: str = "png",
) -> dict[str, Any]:
    """Facts about every task whose kind is judged by ``gold`` or by ``references``, or those of ``names``;
    without either, about the tasks that the run keeps gold labels of. ``plots`` is a folder.

    ``view``: the number of the view to judge, 0 for what the model said itself; the one shown otherwise.
    Raises UsageError.
    """
    if not gold and not references:
        names = names or _with_kept_labels(ledger)
    if plots is not None:
        require_plots(plots, plot_format)
    judges: dict[Wanted, Judge] = {}
    if gold or not references:
        judges["gold"] = Judge(all_files(gold), label_field, view)
    if references:
        judges["references"] = Judge(all_files(references), reference_field, view)
    facts: dict[str, Any] = {}
    for task, judge in _chosen(ledger, names, judges):
        facts[task.job.name] = answers_of(task.job.kind).evaluate(ledger, task, judge)
    written = [] if plots is None else draw(facts, plots, plot_format)
    return {"tasks": facts, "plots": [str(path) for path in written]}


def _with_kept_labels(ledger: Ledger) -> list[str]:
    found = [task.job.name for task in ledger.tasks() if ledger.kept_labels(task.job.name)]
    if not found:
        raise UsageError(
            "there is nothing to compare with, and the run keeps no gold labels: give --gold FILE for "
            "labels, --references FILE for summaries, or both"
        )
    return found


def _chosen(
    ledger: Ledger, names: Sequence[str] | None, judges: Mapping[Wanted, Judge]
) -> list[tuple[TaskRow, Judge]]:
    known = {task.job.name: task for task in ledger.tasks()}
    for name in names or ():
        if name not in known:
            raise UsageError(f"there is no task {name!r}; the run has {', '.join(known)}")
        _refuse_unjudged(known[name], judges)
    asked = [known[name] for name in names] if names else list(known.values())
    chosen = [(task, judge) for task in asked if (judge := _judge(task, judges)) is not None]
    for by in judges:
        if not any(judge is judges[by] for _, judge in chosen):
            judged = " or ".join(name for name in kinds() if answers_of(name).judged_by == by)
            raise UsageError(f"--{by} was given, but no task of kind {judged} is to be evaluated")
    return chosen


def _judged_by(task: TaskRow) -> Wanted | None:
    return answers_of(task.job.kind).judged_by


def _judge(task: TaskRow, judges: Mapping[Wanted, Judge]) -> Judge | None:
    by = _judged_by(task)
    return None if by is None else judges.get(by)


def _refuse_unjudged(task: TaskRow, judges: Mapping[Wanted, Judge]) -> None:
    by = _judged_by(task)
    if by is None:
        raise UsageError(
            f"task {task.job.name!r} is of kind {task.job.kind}, whose answers cannot be evaluated"
        )
    if by not in judges:
        raise UsageError(
            f"task {task.job.name!r} is of kind {task.job.kind}; to evaluate it, give --{by} FILE"
        )
