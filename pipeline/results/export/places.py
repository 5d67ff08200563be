"""Where an export may be written: never over an input, never over a file that somebody else made."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.results.export.columns import NOT_READ, task_columns
from pipeline.results.export.formats import DELIMITERS
from pipeline.results.export.layout import Format, Layout
from pipeline.results.export.source_rows import PLACE
from pipeline.stores.ledger.queries import TaskRow
from pipeline.system.escape import from_spreadsheet
from pipeline.system.writable import check_writable

_HEAD_BYTES = 1 << 24


def check_output(output: Path, layout: Layout, inputs: Sequence[str]) -> None:
    """Refuse places that an export must not, or could not, be written to, before the night begins. ``inputs``
    are files, or folders of them.

    Raises UsageError, StoppedEarly where the disk is full.
    """
    layout.format_of(output)
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


def check_foreign(
    output: Path, tasks: Sequence[TaskRow], layout: Layout, *, beside: Collection[str] | None
) -> None:
    """Refuse to replace a file that is not an earlier export of some of ``tasks``. ``beside``: names that
    columns of the source may have in it; None where these are not known yet. Raises UsageError.
    """
    if not output.exists() or not output.stat().st_size:
        return
    names = _columns_of(output, layout.format_of(output))
    strange = _strange_columns(names, tasks, beside)
    if strange == names:
        told = "is not an earlier export of this run"
    elif strange:
        told = f"has a column {strange[0]!r}, which this export would not write"
    else:
        return
    raise UsageError(f"{output} exists and {told}; choose another name, or --force to overwrite it")


def _strange_columns(
    names: Sequence[str], tasks: Sequence[TaskRow], beside: Collection[str] | None
) -> Sequence[str]:
    """Those that no export has: it begins with ``id``, then come the columns of some of the tasks (an earlier
    one may have had fewer), then perhaps those of the source. All ``names`` where they are not an export's.
    """
    rest = list(names[2 if names[1:2] == [NOT_READ] else 1 :])
    for task in tasks:
        ways = itertools.product((True, False), (True, False))
        groups = [list(task_columns(task, viewed=viewed, flat=flat)) for viewed, flat in ways]
        del rest[: max(len(group) if rest[: len(group)] == group else 0 for group in groups)]
    if names[:1] != ["id"] or len(rest) >= len(names) - 1 - (NOT_READ in names[1:2]):
        return names
    if rest[: len(PLACE)] == list(PLACE):
        rest = [] if beside is None else [name for name in rest[len(PLACE) :] if name not in beside]
    return rest


def _columns_of(path: Path, written: Format) -> list[str]:
    """Column names of a file, [] when it has none that can be read."""
    try:
        if written == "parquet":
            import pyarrow.parquet as pq

            return list(pq.read_schema(path).names)
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
        if written != "jsonl":
            text = io.StringIO(head.decode("utf-8", "surrogateescape"), newline="")
            names = next(csv.reader(text, delimiter=DELIMITERS[written]), [])
            return [from_spreadsheet(name) for name in names]
        first = json.loads(head.split(b"\n", 1)[0])
        return list(first) if isinstance(first, dict) else []
    except (OSError, ValueError, csv.Error, RecursionError):  # pyarrow's errors are ValueErrors and OSErrors
        return []
