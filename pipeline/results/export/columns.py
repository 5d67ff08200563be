"""The columns of the answers, and their cells in one row: the id, and what each task has to say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import UsageError
from pipeline.results.export.formats import Row
from pipeline.results.export.value_types import TEXT, ValueType
from pipeline.stores.ledger.queries import ExportRow, InputRow, TaskResult, TaskRow
from pipeline.stores.ledger.unread import UNREADABLE
from pipeline.tasks.answers import Column, ColumnType, View
from pipeline.tasks.registry import answers_of, columns_of

NOT_READ = "not_read"
"""Why the last run has not seen a row; the column is there where some have not been."""

_NOT_COVERED = "view 0: none (what the view is computed from was not kept)"
_TYPES: Mapping[ColumnType, ValueType] = {
    "text": TEXT,
    "texts": ValueType("list", item=TEXT),
    "integer": ValueType("integer"),
    "number": ValueType("number"),
    "yes or no": ValueType("yes or no"),
    "numbers by name": ValueType("numbers by name"),
}


def answer_columns(
    tasks: Sequence[TaskRow], views: Mapping[str, View], *, flat: bool = False, unread: bool = False
) -> dict[str, ValueType]:
    """What each column holds, by its name, in their order; ``unread``: there are rows that the last run has
    not seen. Raises UsageError where two have one name.
    """
    columns: dict[str, ValueType] = {"id": TEXT, **({NOT_READ: TEXT} if unread else {})}
    for task in tasks:
        for name, kind in task_columns(task, viewed=task.job.name in views, flat=flat).items():
            if name in columns:
                raise UsageError(
                    f"two tasks of this run would both fill the column {name!r}; rename one of them"
                )
            columns[name] = kind
    return columns


def task_columns(task: TaskRow, *, viewed: bool, flat: bool) -> dict[str, ValueType]:
    """Those of one task: fixed by the task, so that a file of nulls has the same types as a full one."""
    name = task.job.name
    further = {name + column.ending: _TYPES[column.type] for column in _further(task, flat=flat)}
    return {
        name: _TYPES[answers_of(task.job.kind).answer_type(task)],
        f"{name}_status": TEXT,
        f"{name}_error": TEXT,
        f"{name}_finish_reason": TEXT,
        **further,
        **({f"{name}_calibration": TEXT} if viewed else {}),
    }


def _further(task: TaskRow, *, flat: bool) -> Sequence[Column]:
    found = answers_of(task.job.kind).flat_columns(task) if flat else None
    return columns_of(task.job.kind) if found is None else found


def answer_cells(
    row: ExportRow,
    tasks: Sequence[TaskRow],
    views: Mapping[str, View],
    *,
    flat: bool = False,
    unread: bool = False,
) -> Row:
    """The cells of one input, by the names of their columns."""
    cells: Row = {"id": _text(row.input.id), **({NOT_READ: _not_read(row.input)} if unread else {})}
    for task in tasks:
        view = views.get(task.job.name)
        found = _cells(row.results[task.job.name], task, view, flat=flat)
        cells.update(zip(task_columns(task, viewed=view is not None, flat=flat), found, strict=True))
    return cells


def _not_read(row: InputRow) -> str | None:
    if row.unread == UNREADABLE:
        return f"{_text(row.file)} could not be read in the last run: what is shown is from before"
    return None if row.unread is None else "left out by the last run: what is shown is from before"


def _cells(result: TaskResult, task: TaskRow, view: View | None, *, flat: bool) -> list[Any]:
    answers = answers_of(task.job.kind)
    cells = [answers.answer(result), result.state, result.error, result.finish_reason]
    further = answers.flat_cells(task, result) if flat else answers.cells(result)
    shown = [_plain(cell) for cell in [*cells, *further]]
    if view is not None:
        shown.append(_seen_through(view, result))
    return shown


def _seen_through(view: View, result: TaskResult) -> str | None:
    if result.state != "done":
        return None
    return view.short() if view.covers(result) else _NOT_COVERED


def _plain(value: Any) -> Any:
    """``value`` as every format can hold it."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {_text(name): _plain(item) for name, item in value.items()}
    if isinstance(value, bool | int):
        return value
    return _number(value) if isinstance(value, float) else _text(value)


def _text(value: Any) -> str | None:
    """Text that UTF-8 can hold: lone surrogates become U+FFFD."""
    return (
        None
        if value is None
        else str(value).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    )


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
