"""The answers as one file: a row a document, in input order, written whole or not at all.

JSON lines and Parquet hold values as they are; several labels are a list, probabilities an object (a map from
label to number in Parquet). In CSV and TSV lists and objects are JSON text, nothing is an empty cell, and a
text that a spreadsheet would compute gets an apostrophe in front. Documents without an answer are rows like
the others, whose status says why.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.config import parse_config
from pipeline.errors import OvernightError
from pipeline.results.export.columns import NOT_READ, answer_cells, answer_columns
from pipeline.results.export.formats import WRITERS, Row
from pipeline.results.export.layout import Layout
from pipeline.results.export.places import check_foreign, check_output
from pipeline.results.export.source_rows import SourceRows
from pipeline.results.source_texts import last_config
from pipeline.results.views import said, through
from pipeline.sources import source_files
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import ExportRow, TaskRow
from pipeline.system.atomic_write import replace_file
from pipeline.system.run_directory import LEDGER
from pipeline.system.writable import written_later
from pipeline.tasks.answers import View
from pipeline.tasks.registry import answers_of

__all__ = ["Exported", "Layout", "export"]


@dataclass(frozen=True, slots=True)
class Exported:
    """So many ``rows`` were written, of which so many are ``pending``; ``sentences`` to be said of them."""

    rows: int = 0
    pending: int = 0
    sentences: tuple[str, ...] = ()


def export(
    ledger: Ledger,
    output: Path | None,
    layout: Layout = Layout(),  # noqa: B008  # frozen
    *,
    force: bool = False,
    inputs: Sequence[str] = (),
    view: int | None = None,
    again: str = "the same command",
) -> Exported:
    """Write every present input with the answers of the active tasks to a file, or standard output (None).

    Answers are seen through the view that is shown, or that of the number ``view``; 0 is what the model
    said itself. Rows that the last run could not read, or left out, are marked in a column of their own. An
    existing file is replaced when its columns say that it is an earlier export, or with
    ``force``; an input of the run never. ``again``: the command that writes it where that fails. Raises
    UsageError, StoppedEarly when it could not be written.
    """
    write = WRITERS[layout.format_of(output)]
    if output is not None:
        check_output(output, layout, [*inputs, *_inputs(ledger)])
    tasks = ledger.tasks()
    views = _views(ledger, tasks, view)
    unread = ledger.status().unread
    columns = answer_columns(tasks, views, flat=layout.flat, unread=unread)
    with ExitStack() as stack:
        source = _source(ledger, layout, columns, stack)
        columns |= source.columns if source is not None else {}
        if output is not None and not force:
            check_foreign(output, tasks, layout, beside=columns)
        rows = ledger.rows()
        seen = through(rows, views) if views else said(rows, tasks) if view == 0 else rows
        table = _Table(seen, tasks, views, source, flat=layout.flat, unread=unread)
        with _opened(output, again) as stream:
            write(stream, columns, table)
    return Exported(table.rows, table.pending, table.sentences())


class _Table:
    """The rows of an export, counted while they are gone through, once."""

    def __init__(
        self,
        seen: Iterator[ExportRow],
        tasks: Sequence[TaskRow],
        views: Mapping[str, View],
        source: SourceRows | None,
        *,
        flat: bool,
        unread: bool,
    ) -> None:
        self._seen, self._tasks, self._views, self._source = seen, tasks, views, source
        self._flat, self._unread = flat, unread
        self.rows = self.pending = self.not_read = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._seen:
            self.rows += 1
            self.pending += any(result.state in ("pending", "running") for result in row.results.values())
            self.not_read += row.input.unread is not None
            cells = answer_cells(row, self._tasks, self._views, flat=self._flat, unread=self._unread)
            yield cells if self._source is None else cells | self._source.cells(row.input)

    def sentences(self) -> tuple[str, ...]:
        """What is to be said of them."""
        pending = (
            f"{self.pending:,} of {self.rows:,} rows are not answered yet; they are in the table, their "
            f"status is pending. Run the same configuration again to go on"
            if self.pending
            else None
        )
        not_read = (
            f"{self.not_read:,} of {self.rows:,} rows were not seen by the last run; the column {NOT_READ} "
            f"says why"
            if self.not_read
            else None
        )
        beside = self._source.sentence() if self._source is not None else None
        return tuple(sentence for sentence in (pending, not_read, beside) if sentence is not None)


def _views(ledger: Ledger, tasks: Sequence[TaskRow], number: int | None) -> dict[str, View]:
    found = {task.job.name: answers_of(task.job.kind).view(ledger, task, number) for task in tasks}
    return {name: view for name, view in found.items() if view is not None}


def _source(ledger: Ledger, layout: Layout, own: Mapping[str, Any], stack: ExitStack) -> SourceRows | None:
    if not layout.has_source:
        return None
    source = SourceRows(ledger, last_config(ledger), layout.fields, own)
    stack.callback(source.close)
    return source


@contextmanager
def _opened(output: Path | None, again: str) -> Iterator[IO[bytes]]:
    """Where the bytes go. What lies in a run directory is as private as everything there."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    place = Path(os.path.realpath(output))
    with written_later(output, again):
        place.parent.mkdir(parents=True, exist_ok=True)
        inside = any((folder / LEDGER).exists() for folder in place.parents)
        with replace_file(output, private=inside) as stream:
            yield stream


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
