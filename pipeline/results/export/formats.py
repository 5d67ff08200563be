"""Rows as bytes: JSON lines, CSV, TSV and Parquet, a block of rows in memory at a time."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

from pipeline.results.export.layout import Format
from pipeline.results.export.value_types import ValueType, arrow_type, as_text, to_arrow
from pipeline.system.escape import spreadsheet_text

Row = dict[str, Any]
Writer = Callable[[IO[bytes], Mapping[str, ValueType], Iterable[Row]], None]
_GROUP_ROWS = 2048
_GROUP_CHARACTERS = 8_000_000
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}  # some readers of lines split at these


def _write_jsonl(stream: IO[bytes], _: Mapping[str, ValueType], rows: Iterable[Row]) -> None:
    for row in rows:
        stream.write(as_text(row).translate(_LINE_ENDS).encode("utf-8") + b"\n")


def _write_csv(
    stream: IO[bytes], columns: Mapping[str, ValueType], rows: Iterable[Row], delimiter: str = ","
) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    try:
        # with "\n" alone, Python leaves a carriage return inside a cell unquoted
        table = csv.writer(text, delimiter=delimiter, lineterminator="\r\n")
        table.writerow(map(spreadsheet_text, columns))
        table.writerows([_csv_cell(row[column]) for column in columns] for row in rows)
    finally:
        text.detach()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str):
        return spreadsheet_text(value)
    return as_text(value) if isinstance(value, list | dict | bool) else value


def _write_parquet(stream: IO[bytes], columns: Mapping[str, ValueType], rows: Iterable[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, arrow_type(kind, pa)) for name, kind in columns.items()])
    readers = [(field.name, field.type, to_arrow(field.type, pa)) for field in schema]
    iterator = iter(rows)
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        while block := _group_of(iterator):
            arrays = [
                pa.array([None if (cell := row[name]) is None else read(cell) for row in block], kind)
                for name, kind, read in readers
            ]
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


DELIMITERS: Mapping[Format, str] = {"csv": ",", "tsv": "\t"}
WRITERS: Mapping[Format, Writer] = {
    "jsonl": _write_jsonl,
    **{name: functools.partial(_write_csv, delimiter=mark) for name, mark in DELIMITERS.items()},
    "parquet": _write_parquet,
}
