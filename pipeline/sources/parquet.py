"""Parquet files by pyarrow: only the needed columns, a few rows at a time, on this thread alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.records import Origin, Reject
from pipeline.sources.arrow import table_rows
from pipeline.sources.files import SourceFile
from pipeline.sources.rows import Raw, Wanted
from pipeline.sources.streams import DamagedFile
from pipeline.system.repeated import first_repeated

_BATCH_ROWS = 64
_BUFFER_BYTES = 1 << 20


def read(file: SourceFile, want: Wanted) -> Iterator[Raw | Reject]:
    """Rows of ``file``. Raises Damaged where it cannot be opened or lacks a needed column; a damaged row
    group is one Reject.
    """
    try:
        stream = file.open()
    except Exception as error:  # remote filesystems raise their libraries' own classes
        raise DamagedFile(f"the file cannot be read: {type(error).__name__}: {error}") from error
    with stream:
        parquet = _open(stream)
        try:
            columns = _columns(parquet, want)
            first_row = 1
            for group in range(parquet.num_row_groups):
                yield from _group_rows(parquet, group, columns, file.name, first_row)
                first_row += parquet.metadata.row_group(group).num_rows
        finally:
            parquet.close()


def _open(stream: Any) -> Any:
    import pyarrow.parquet as pq  # only where such a file is read

    try:
        return pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    except Exception as error:  # noqa: BLE001 - pyarrow and remote filesystems raise many classes
        said = " ".join(str(error).split())[:300]
        raise DamagedFile(
            f"not a readable Parquet file: {said}; without its end (truncated) no row can be found, so "
            f"write it again"
        ) from None


def _columns(parquet: Any, want: Wanted) -> list[str]:
    names = parquet.schema_arrow.names
    if (lacking := want.lacking(names)) is not None:
        raise DamagedFile(f"the file has {lacking}")
    if (repeated := first_repeated(name for name in names if name in want.columns)) is not None:
        raise DamagedFile(f"the file has more than one column {repeated!r}; rename all but one")
    return want.among(names)


def _group_rows(
    parquet: Any, group: int, columns: list[str], name: str, first_row: int
) -> Iterator[Raw | Reject]:
    """Rows of one row group. After an error the group is read again row by row, to give all rows before the
    damage.
    """
    done = 0
    try:
        for batch in _batches(parquet, group, columns, _BATCH_ROWS):
            yield from table_rows(batch, columns, name, first_row + done)
            done += batch.num_rows
        return
    except _ReadError:
        pass
    seen = 0
    try:
        for batch in _batches(parquet, group, columns, 1):
            seen += batch.num_rows
            if seen > done:
                yield from table_rows(batch, columns, name, first_row + done)
                done += 1
    except _ReadError as error:
        last = first_row + parquet.metadata.row_group(group).num_rows - 1
        yield Reject(
            Origin(name, first_row + done),
            f"rows {first_row + done} to {last} of the file cannot be read: {error}",
            ends_file=True,
        )


class _ReadError(Exception):
    """pyarrow could not give the next batch."""


def _batches(parquet: Any, group: int, columns: list[str], batch_rows: int) -> Iterator[Any]:
    """Batches of a row group; whatever pyarrow raises becomes _ReadError, so that errors of the reader's
    consumer stay what they are.
    """
    try:
        yield from parquet.iter_batches(
            batch_size=batch_rows, row_groups=[group], columns=columns, use_threads=False
        )
    except GeneratorExit:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        raise _ReadError(" ".join(str(error).split())[:300]) from None
