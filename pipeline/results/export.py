"""The answers as one file: a row a document, in input order, written whole or not at all.

JSON lines and Parquet hold values as they are; several labels are a list, probabilities an object (a map from
label to number in Parquet). In CSV lists and objects are JSON text, nothing is an empty cell, and a cell that
begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return gets an apostrophe in front, so that a
spreadsheet shows it instead of computing it.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pipeline.config import parse_config
from pipeline.errors import OvernightError, UsageError
from pipeline.results.views import said, through
from pipeline.sources import source_files
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import ExportRow, TaskResult, TaskRow
from pipeline.system.atomic_write import replace_file
from pipeline.system.escape import spreadsheet_text
from pipeline.tasks.answers import ColumnType, View
from pipeline.tasks.registry import answers_of, columns_of

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
_GROUP_ROWS = 2048
_GROUP_CHARACTERS = 8_000_000
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}  # some readers of lines split at these
_HEAD_BYTES = 1 << 24
_NOT_COVERED = "view 0: none (what the view is computed from was not kept)"


def check_output(output: Path, inputs: Sequence[str]) -> None:
    """Refuse places that an export must not be written to, before the night begins. ``inputs`` are files, or
    folders of them.

    Raises UsageError.
    """
    if output.suffix.lower() not in _WRITERS:
        raise UsageError(f"cannot export to {output}: the name must end in .jsonl, .parquet or .csv")
    if output.is_dir():
        raise UsageError(f"cannot export to {output}: it is a folder")
    above = next(folder for folder in output.absolute().parents if folder.exists())
    if not above.is_dir():
        raise UsageError(f"cannot export to {output}: {above} is a file")
    place = Path(os.path.realpath(output))
    for name in inputs:
        source = None if "://" in name else Path(os.path.realpath(name))
        if source is not None and (
            source == place or (output.exists() and source.is_file() and output.samefile(source))
        ):
            raise UsageError(f"cannot export to {output}: it is an input of the run; choose another name")
        if source is not None and source.is_dir() and place.is_relative_to(source):
            raise UsageError(
                f"cannot export to {output}: the next run would read it from the folder {name}; choose "
                f"another place"
            )


def export(
    ledger: Ledger, output: Path, *, force: bool = False, inputs: Sequence[str] = (), view: int | None = None
) -> int:
    """Write every present input with the answers of the active tasks; returns the number of rows.

    Answers are shown through their latest view, or that of the number ``view``; 0 is what the model said
    itself. An existing file is replaced when its columns say that it is an earlier export, or with
    ``force``; an input of the run never. Raises UsageError, StoppedEarly when the disk is full.
    """
    check_output(output, [*inputs, *_inputs(ledger)])
    tasks = ledger.tasks()
    views = {task.job.name: found for task in tasks if (found := _view(ledger, task, view)) is not None}
    columns = _columns(tasks, views)
    if output.exists() and not force and not _is_export(output, tasks):
        raise UsageError(
            f"{output} exists and is not an earlier export of this run; choose another name, or --force "
            f"to overwrite it"
        )
    rows_seen = (
        through(ledger.rows(), views) if views else said(ledger.rows(), tasks) if view == 0 else ledger.rows()
    )
    rows = _counted(_record(row, tasks, views) for row in rows_seen)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(output) as stream:
            _WRITERS[output.suffix.lower()](stream, columns, rows.values, tasks)
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from None
    return rows.count


def _view(ledger: Ledger, task: TaskRow, number: int | None) -> View | None:
    return answers_of(task.job.kind).view(ledger, task, number)


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


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────


class _counted:  # noqa: N801  # used like a function: an iterable that remembers its length
    def __init__(self, rows: Iterable[Row]) -> None:
        self.count = 0
        self.values = self._pass(rows)

    def _pass(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self.count += 1
            yield row


def _group(task: TaskRow, *, viewed: bool) -> list[str]:
    """The columns of one task."""
    further = [column.ending for column in columns_of(task.job.kind)]
    endings = ["", "_status", "_error", "_finish_reason", *further, *(["_calibration"] if viewed else [])]
    return [task.job.name + ending for ending in endings]


def _columns(tasks: Sequence[TaskRow], views: Mapping[str, View]) -> list[str]:
    columns = [
        "id",
        *itertools.chain.from_iterable(_group(task, viewed=task.job.name in views) for task in tasks),
    ]
    for column in columns:
        if columns.count(column) > 1:
            raise UsageError(
                f"two tasks of this run would both fill the column {column!r}; rename one of them"
            )
    return columns


def _record(row: ExportRow, tasks: Sequence[TaskRow], views: Mapping[str, View]) -> Row:
    record: Row = {"id": _text(row.input.id)}
    for task in tasks:
        view = views.get(task.job.name)
        result = row.results[task.job.name]
        cells = _cells(result, task)
        if view is not None:
            cells.append(
                None if result.state != "done" else view.short() if view.covers(result) else _NOT_COVERED
            )
        record.update(zip(_group(task, viewed=view is not None), cells, strict=True))
    return record


def _cells(result: TaskResult, task: TaskRow) -> list[Any]:
    answers = answers_of(task.job.kind)
    cells = [answers.answer(result), result.state, result.error, result.finish_reason]
    return [_plain(cell) for cell in [*cells, *answers.cells(result)]]


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


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────


def _write_jsonl(stream: IO[bytes], _: Sequence[str], rows: Iterable[Row], __: Sequence[TaskRow]) -> None:
    for row in rows:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS)
        stream.write(line.encode("utf-8") + b"\n")


def _write_csv(stream: IO[bytes], columns: Sequence[str], rows: Iterable[Row], _: Sequence[TaskRow]) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    try:
        # with "\n" alone, Python leaves a carriage return inside a cell unquoted
        table = csv.writer(text, lineterminator="\r\n")
        table.writerow(columns)
        table.writerows([_csv_cell(row[column]) for column in columns] for row in rows)
    finally:
        text.detach()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    return spreadsheet_text(value) if isinstance(value, str) else value


def _write_parquet(
    stream: IO[bytes], columns: Sequence[str], rows: Iterable[Row], tasks: Sequence[TaskRow]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"id": pa.string()} | {
        name: kind
        for task in tasks
        for name, kind in zip(_group(task, viewed=True), _types(task, pa), strict=False)
    }
    schema = pa.schema([(name, types[name]) for name in columns])
    iterator = iter(rows)
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        while block := _group_of(iterator):
            arrays = [pa.array([_arrow(row[field.name]) for row in block], field.type) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _group_of(rows: Iterator[Row]) -> list[Row]:
    """The next rows for one group: so many, or fewer of long answers."""
    block: list[Row] = []
    characters = 0
    for row in rows:
        block.append(row)
        characters += sum(len(cell) for cell in row.values() if isinstance(cell, str))
        if len(block) == _GROUP_ROWS or characters >= _GROUP_CHARACTERS:
            break
    return block


def _types(task: TaskRow, pa: Any) -> list[pa.DataType]:
    """Fixed by the task, so that a file of nulls has the same schema as a full one."""
    found: dict[ColumnType, Any] = {
        "text": pa.string(),
        "texts": pa.list_(pa.string()),
        "integer": pa.int64(),
        "number": pa.float64(),
        "yes or no": pa.bool_(),
        "numbers by name": pa.map_(pa.string(), pa.float64()),
    }
    further = [found[column.type] for column in columns_of(task.job.kind)]
    answer = found[answers_of(task.job.kind).answer_type(task)]
    return [answer, *[pa.string()] * 3, *further, pa.string()]


def _arrow(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


_WRITERS: Mapping[str, Callable[[IO[bytes], Sequence[str], Iterable[Row], Sequence[TaskRow]], None]] = {
    ".jsonl": _write_jsonl,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}


# ── earlier exports ─────────────────────────────────────────────────────────────────────────────────────────


def _is_export(path: Path, tasks: Sequence[TaskRow]) -> bool:
    """Whether the file's columns are ``id`` and then those of some of the tasks (an earlier export may have
    had fewer); empty files are.
    """
    if not path.stat().st_size:
        return True
    rest = _columns_of(path)
    if rest[:1] != ["id"] or len(rest) == 1:
        return False
    del rest[0]
    for task in tasks:
        for group in (_group(task, viewed=True), _group(task, viewed=False)):
            if rest[: len(group)] == group:
                del rest[: len(group)]
                break
    return not rest


def _columns_of(path: Path) -> list[str]:
    """Column names of a file, [] when it has none that can be read."""
    try:
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet as pq

            return list(pq.read_schema(path).names)
        with path.open("rb") as stream:
            head = stream.readline(_HEAD_BYTES).decode("utf-8")
        if path.suffix.lower() == ".csv":
            return next(csv.reader([head]), [])
        first = json.loads(head)
        return list(first) if isinstance(first, dict) else []
    except (OSError, ValueError, csv.Error, RecursionError):  # pyarrow's errors are ValueErrors and OSErrors
        return []
