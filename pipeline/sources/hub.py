"""Datasets of the Hub, streamed, and folders written by ``save_to_disk``: both by the ``datasets`` library,
needed columns only.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.config import SourceConfig
from pipeline.errors import SourceError
from pipeline.records import Origin
from pipeline.sources.arrow import table_rows
from pipeline.sources.files import hub_name
from pipeline.sources.rows import Raw, Wanted

_BATCH_ROWS = 64
_REMEDY = (
    "check the name, source.subset, source.split and source.revision, the network (HF_HUB_OFFLINE must "
    "not be set for what is not "
    "cached), and for gated data the login (HF_TOKEN)"
)


def read_hub(path: str, config: SourceConfig, want: Wanted) -> Iterator[Raw]:
    """Rows of a Hub dataset. Raises SourceError when it cannot be reached, at the start or later."""
    name = hub_name(path)
    if Path(name).exists():
        raise SourceError(
            f"{path}: a local folder {name} hides that dataset; write source.path: ./{name} for the "
            f"folder, or run elsewhere"
        )
    import datasets  # takes a second to import: only where it is used

    try:
        dataset = datasets.load_dataset(
            name, config.subset, split=_split(config), revision=config.revision, streaming=True
        )
    except Exception as error:  # noqa: BLE001 - the library and its transports raise many classes
        raise SourceError(f"cannot open the Hub dataset {name!r}: {_one_line(error)}; {_REMEDY}") from None
    yield from stream_rows(dataset, path, want)


def stream_rows(dataset: Any, name: str, want: Wanted) -> Iterator[Raw]:
    """Rows of a streaming dataset, the others of its columns neither decoded nor passed on. Raises
    SourceError when the stream breaks.
    """
    known = dataset.column_names
    if known is not None:
        dataset = dataset.select_columns(_present(known, want, name))
    stream = _Stream(dataset)
    atexit.register(stream.close)
    unregister = atexit.unregister  # a local name lives on when modules are taken down at exit
    number = 0
    try:
        while (row := stream.next_row(name, number)) is not None:
            number += 1
            yield Raw(Origin(name, number), want.of(row))
    finally:
        unregister(stream.close)
        stream.close()


class _Stream:
    """An open streaming dataset that can be closed before the interpreter goes down.

    Arrow's reading threads hang in reference cycles of the library; left alive, they abort the process at its
    exit (seen in 4 of 10 partial reads with datasets 5.2.0 and pyarrow 26), so closing collects the cycles at
    once.
    """

    def __init__(self, dataset: Any) -> None:
        self._rows: Any = iter(dataset)

    def next_row(self, name: str, number: int) -> Any | None:
        """The next row, None at the end. Raises SourceError when the stream breaks after ``number`` rows."""
        try:
            return next(self._rows, None)
        except Exception as error:  # noqa: BLE001 - the library and its transports raise many classes
            remedy = "what was read is not lost, so check the network and run the same command again"
            raise SourceError(
                f"reading {name} broke after {number} rows: {_one_line(error)}; {remedy}"
            ) from None

    def close(self) -> None:
        """Close, once."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None
            gc.collect()


def read_saved(path: str, config: SourceConfig, want: Wanted) -> Iterator[Raw]:
    """Rows of a folder written by ``save_to_disk``; of several splits the configured one."""
    import datasets

    try:
        dataset: Any = datasets.load_from_disk(path)
    except Exception as error:  # noqa: BLE001 - as above
        raise SourceError(
            f"cannot read the saved dataset {path}: {_one_line(error)}; save it again with save_to_disk"
        ) from None
    if isinstance(dataset, dict):
        split = _split(config)
        if split not in dataset:
            splits = ", ".join(map(str, dataset))
            raise SourceError(
                f"the saved dataset {path} has no split {split!r} (splits: {splits}); set source.split"
            )
        dataset = dataset[split]
    columns = _present(dataset.column_names, want, path)
    first_row = 1
    for table in dataset.select_columns(columns).with_format("arrow").iter(batch_size=_BATCH_ROWS):
        yield from table_rows(table, columns, path, first_row)
        first_row += table.num_rows


def _split(config: SourceConfig) -> str:
    return config.split or "train"


def _present(known: list[str], want: Wanted, name: str) -> list[str]:
    if (lacking := want.lacking(known)) is not None:
        raise SourceError(f"{name} has {lacking}")
    return want.among(known)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
