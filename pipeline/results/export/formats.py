"""Rows as bytes: JSON lines, CSV and Parquet, a block of rows in memory at a time."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from pipeline.system.escape import spreadsheet_text
from pipeline.tasks.answers import ColumnType

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
_GROUP_ROWS = 2048
_GROUP_CHARACTERS = 8_000_000
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}  # some readers of lines split at these


def _write_jsonl(stream: IO[bytes], _: Mapping[str, ColumnType], rows: Iterable[Row]) -> None:
    for row in rows:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS)
        stream.write(line.encode("utf-8") + b"\n")


def _write_csv(stream: IO[bytes], columns: Mapping[str, ColumnType], rows: Iterable[Row]) -> None:
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


def _write_parquet(stream: IO[bytes], columns: Mapping[str, ColumnType], rows: Iterable[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, _arrow_type(kind, pa)) for name, kind in columns.items()])
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


def _arrow_type(kind: ColumnType, pa: Any) -> pa.DataType:
    found: dict[ColumnType, Any] = {
        "text": pa.string(),
        "texts": pa.list_(pa.string()),
        "integer": pa.int64(),
        "number": pa.float64(),
        "yes or no": pa.bool_(),
        "numbers by name": pa.map_(pa.string(), pa.float64()),
    }
    return found[kind]


def _arrow(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


WRITERS: Mapping[str, Callable[[IO[bytes], Mapping[str, ColumnType], Iterable[Row]], None]] = {
    ".jsonl": _write_jsonl,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
"""By the ending of a file's name."""
