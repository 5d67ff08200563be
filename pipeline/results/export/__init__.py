"""The answers as one file: a row a document, in input order, written whole or not at all.

JSON lines and Parquet hold values as they are; several labels are a list, probabilities an object (a map from
label to number in Parquet). In CSV lists and objects are JSON text, nothing is an empty cell, and a cell that
begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return gets an apostrophe in front, so that a
spreadsheet shows it instead of computing it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.config import parse_config
from pipeline.errors import OvernightError
from pipeline.results.export.columns import Counted, record, table_columns
from pipeline.results.export.formats import WRITERS
from pipeline.results.export.places import check_foreign, check_output
from pipeline.results.views import said, through
from pipeline.sources import source_files
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.atomic_write import replace_file
from pipeline.system.writable import written_later
from pipeline.tasks.registry import answers_of


def export(
    ledger: Ledger,
    output: Path,
    *,
    force: bool = False,
    inputs: Sequence[str] = (),
    view: int | None = None,
    again: str = "the same command",
) -> int:
    """Write every present input with the answers of the active tasks; returns the number of rows.

    Answers are shown through their latest view, or that of the number ``view``; 0 is what the model said
    itself. An existing file is replaced when its columns say that it is an earlier export, or with
    ``force``; an input of the run never. ``again``: the command that writes it where that fails. Raises
    UsageError, StoppedEarly when it could not be written.
    """
    check_output(output, [*inputs, *_inputs(ledger)])
    tasks = ledger.tasks()
    kinds = {task.job.name: answers_of(task.job.kind) for task in tasks}
    seen = {task.job.name: kinds[task.job.name].view(ledger, task, view) for task in tasks}
    views = {name: found for name, found in seen.items() if found is not None}
    columns = table_columns(tasks, views)
    if not force:
        check_foreign(output, tasks)
    rows_seen = (
        through(ledger.rows(), views) if views else said(ledger.rows(), tasks) if view == 0 else ledger.rows()
    )
    rows = Counted(record(row, tasks, views) for row in rows_seen)
    with written_later(output, again):
        Path(os.path.realpath(output)).parent.mkdir(parents=True, exist_ok=True)
        with replace_file(output) as stream:
            WRITERS[output.suffix.lower()](stream, columns, rows)
    return rows.count


def _inputs(ledger: Ledger) -> list[str]:
    """The files that the latest run read, as far as they can still be told."""
    runs = ledger.runs()
    try:
        return (
            source_files(parse_config(runs[-1]["facts"]["config"]).source)
            if runs and "config" in runs[-1]["facts"]
            else []
        )
    except OvernightError:
        return []
