"""Where an export may be written: never over an input, never over a file that somebody else made."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.results.export.columns import task_columns
from pipeline.results.export.formats import WRITERS
from pipeline.stores.ledger.queries import TaskRow
from pipeline.system.writable import check_writable

_HEAD_BYTES = 1 << 24


def check_output(output: Path, inputs: Sequence[str]) -> None:
    """Refuse places that an export must not, or could not, be written to, before the night begins. ``inputs``
    are files, or folders of them.

    Raises UsageError, StoppedEarly where the disk is full.
    """
    if output.suffix.lower() not in WRITERS:
        raise UsageError(f"cannot export to {output}: the name must end in .jsonl, .parquet or .csv")
    check_writable(output)
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


def check_foreign(output: Path, tasks: Sequence[TaskRow]) -> None:
    """Refuse to replace a file that is not an earlier export of some of ``tasks``. Raises UsageError."""
    if output.exists() and not _is_export(output, tasks):
        raise UsageError(
            f"{output} exists and is not an earlier export of this run; choose another name, or --force "
            f"to overwrite it"
        )


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
        for viewed in (True, False):
            group = list(task_columns(task, viewed=viewed))
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
