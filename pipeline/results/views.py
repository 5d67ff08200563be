"""Answers as views show them, whatever kind of task they are of; see ``pipeline.tasks.answers``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.stores.ledger.queries import ExportRow, TaskResult, TaskRow
from pipeline.tasks.answers import View
from pipeline.tasks.registry import answers_of

_BLOCK_ROWS = 1000


def through(rows: Iterable[ExportRow], views: Mapping[str, View]) -> Iterator[ExportRow]:
    """``rows`` with the answers of the viewed tasks as their views show them."""
    iterator = iter(rows)
    while block := list(itertools.islice(iterator, _BLOCK_ROWS)):
        shown = {name: apply_to(view, [row.results[name] for row in block]) for name, view in views.items()}
        for place, row in enumerate(block):
            yield replace(
                row, results={**row.results, **{name: column[place] for name, column in shown.items()}}
            )


def said(rows: Iterable[ExportRow], tasks: Sequence[TaskRow]) -> Iterator[ExportRow]:
    """``rows`` with what the model said itself, also where a threshold was applied when it was recorded."""
    kinds = {task.job.name: (task, answers_of(task.job.kind)) for task in tasks}
    for row in rows:
        plain = {name: answers.said(task, row.results[name]) for name, (task, answers) in kinds.items()}
        yield replace(row, results={**row.results, **plain})


def apply_to(view: View, results: Sequence[TaskResult]) -> list[TaskResult]:
    """``results`` with those of done documents as the view shows them; the others stay."""
    places = [place for place, result in enumerate(results) if view.covers(result)]
    shown = list(results)
    if places:
        for place, result in zip(places, view.apply([results[place] for place in places]), strict=True):
            shown[place] = result
    return shown
