"""Arrow tables to rows: each value by itself, so that one that cannot be given costs only its own row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.records import Origin
from pipeline.sources.rows import Raw, Unreadable


def table_rows(table: Any, columns: Sequence[str], name: str, first_row: int) -> Iterator[Raw]:
    """Rows of a pyarrow Table or RecordBatch; ``first_row`` is the number (from 1) of its first."""
    present = [column for column in columns if column in table.schema.names]
    values = [_values(table.column(table.schema.get_field_index(column))) for column in present]
    for index in range(table.num_rows):
        yield Raw(
            Origin(name, first_row + index), {column: values[at][index] for at, column in enumerate(present)}
        )


def _values(column: Any) -> list[object]:
    try:
        return list(column.to_pylist())
    except Exception:  # noqa: BLE001 - undecodable text, dates out of Python's range, and whatever extension types raise
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> object:
    import pyarrow as pa  # only where such a file is read

    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return Unreadable(f"not UTF-8 at byte {error.start} of the value")
    except Exception as error:  # noqa: BLE001 - as above
        try:
            return scalar.cast(pa.string()).as_py()
        except Exception:  # noqa: BLE001 - as above
            return Unreadable(f"{type(error).__name__}: {error}"[:200])
