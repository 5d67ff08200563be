"""Files of labelled documents: the gold set and the examples of a label task, in any format that a source may
have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipeline.config import SourceConfig, as_written
from pipeline.errors import ConfigError, SourceError
from pipeline.quality.examples import Example
from pipeline.records import Document, Reject, digest, is_blank
from pipeline.sources import read_source
from pipeline.sources.files import is_table
from pipeline.system.escape import from_spreadsheet
from pipeline.tasks.label.label_names import label_meant
from pipeline.tasks.label.section import LabelTask


def labelled_for(task: LabelTask) -> list[Example]:
    """What may be shown to the model as examples: those the task lists, or those of its file. Raises
    ConfigError.

    A row of ``gold`` without a label, as in a review file that is half filled in, or without text is left
    out; in ``examples`` it is a fault. ``gold`` without ``examples_per_label`` is for calibration alone: none
    of it is shown.
    """
    if isinstance(task.examples, list):
        rows = [Example(one.id or digest(one.text), one.text, one.label) for one in task.examples]
        return _checked(rows, task, "examples")
    if task.examples is not None:
        return _checked(_read(task.examples, task, partial=False), task, task.examples)
    if task.gold_files and task.examples_per_label is not None:
        rows = [row for path in task.gold_files for row in _read(path, task, partial=True)]
        return _checked(rows, task, ", ".join(task.gold_files))
    return []


def _read(path: str, task: LabelTask, *, partial: bool) -> list[Example]:
    found: list[Example] = []
    back = from_spreadsheet if is_table(path) else str  # what our own review files escape for spreadsheets
    try:
        for row in read_source(SourceConfig(path=as_written(path)), (task.label_field,)):
            if isinstance(row, Reject):
                raise ConfigError(
                    f"task {task.name!r}: {row.origin.file}, line {row.origin.line}: {row.reason}"
                )
            label = back(_label(row, task.label_field))
            if partial and (not label or is_blank(row.text)):
                continue
            if label:
                found.append(Example(back(row.id), back(row.text), label))
            else:
                raise ConfigError(
                    f"task {task.name!r}: document {row.id!r} of {path} has nothing in the field "
                    f"{task.label_field!r}"
                )
    except SourceError as error:
        raise ConfigError(f"task {task.name!r} cannot read its examples: {error}") from None
    return found


def _label(row: Document, field: str) -> str:
    """The label as text; whole numbers are written out, as a table would hold them."""
    value = row.fields.get(field)
    return "" if value is None or isinstance(value, bool) else str(value).strip()


def _checked(examples: Sequence[Example], task: LabelTask, origin: str) -> list[Example]:
    examples = [replace(one, label=label_meant(one.label, task.labels) or one.label) for one in examples]
    if not examples:
        raise ConfigError(
            f"task {task.name!r}: {origin} holds no labelled document; the field {task.label_field!r} "
            f"must name the label"
        )
    for example in examples:
        if example.label not in task.labels:
            known = ", ".join(map(repr, list(task.labels)[:8])) + (", …" if len(task.labels) > 8 else "")
            message = (
                f"document {example.id!r} of {origin} has the label {example.label!r}, which is "
                f"none of {known}"
            )
            raise ConfigError(f"task {task.name!r}: {message}")
        if is_blank(example.text):
            raise ConfigError(
                f"task {task.name!r}: document {example.id!r} of {origin} has no text, so it cannot be an "
                f"example"
            )
    _refuse_doubles(examples, task, origin)
    return examples


def _refuse_doubles(examples: Iterable[Example], task: LabelTask, origin: str) -> None:
    """One document twice, or one text under two labels: either is a mistake that would be taught to the
    model.
    """
    by_id: dict[str, Example] = {}
    by_text: dict[str, Example] = {}
    for example in examples:
        if example.id in by_id:
            raise ConfigError(
                f"task {task.name!r}: document {example.id!r} stands twice in {origin}; keep one of the rows"
            )
        by_id[example.id] = example
        first = by_text.setdefault(" ".join(example.text.split()), example)
        if first.label != example.label:
            message = (
                f"{first.id!r} and {example.id!r} of {origin} have the same text but the labels "
                f"{first.label!r} and {example.label!r}"
            )
            raise ConfigError(f"task {task.name!r}: documents {message}")
