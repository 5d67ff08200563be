"""Rows to documents: tolerant readers, ids, rejects.

``read_source`` gives each row as a Document or a Reject, lazily, in a stable order. What is wrong with a row
is the row's Reject; a file that breaks midway gives its good rows, then one Reject; only what cannot be read
at all raises SourceError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.config import SourceConfig
from pipeline.errors import SourceError
from pipeline.records import Document, FieldValue, Origin, Reject
from pipeline.sources.files import SourceFile, is_hub, is_saved, told
from pipeline.sources.folder import meant
from pipeline.sources.grouping import join_groups
from pipeline.sources.rows import (
    Raw,
    Wanted,
    mend,
    read_fields,
    read_id,
    reject,
    to_document,
    wanted,
)
from pipeline.sources.streams import DamagedFile
from pipeline.system.units import counted

__all__ = [
    "Valued",
    "names_in_order",
    "read_columns",
    "read_source",
    "read_values",
    "source_files",
    "source_remarks",
]


def read_source(config: SourceConfig, fields: Collection[str] = ()) -> Iterator[Document | Reject]:
    """Documents and rejects of a configured source; ``fields`` are the further columns that templates read.

    Holds no more than a block, a record or (with ``group_by``) a group at a time. Closing the iterator early
    closes its files. Raises SourceError.
    """
    want = wanted(config, fields)
    with closing(_read_paths(config, want)) as rows:
        if config.group_by is not None:
            yield from join_groups(rows, want, config.group_by.separator)
            return
        for row in rows:
            yield row if isinstance(row, Reject) else to_document(row, want)


def read_columns(
    config: SourceConfig, columns: Collection[str] | None
) -> Generator[tuple[Document, Mapping[str, object]] | Reject, None, None]:
    """Documents with the values that their rows have in ``columns`` (None: in all), as the source gives them;
    of a group the values of the row that it is said to lie at. A path that cannot be read is a Reject.
    """
    want = wanted(config, (), columns)
    with closing(_whatever_can_be_read(config, want)) as rows:
        if config.group_by is not None:
            yield from _groups_with_values(rows, want, config.group_by.separator)
            return
        for row in rows:
            if isinstance(row, Reject):
                yield row
                continue
            found = to_document(row, want)
            yield found if isinstance(found, Reject) else (found, row.values)


def _whatever_can_be_read(config: SourceConfig, want: Wanted) -> Generator[Raw | Reject, None, None]:
    """Rows of all configured paths, and a Reject for each path that cannot be read."""
    seen: set[str] = set()
    for path in _paths(config):
        try:
            yield from _read_place(_place(path, config), config, want, seen)
        except SourceError as error:
            yield Reject(Origin(path, 1), str(error), ends_file=True)


def _groups_with_values(
    rows: Iterable[Raw | Reject], want: Wanted, separator: str
) -> Iterator[tuple[Document, Mapping[str, object]] | Reject]:
    values: dict[Origin, Mapping[str, object]] = {}  # of the rows of the group that is open

    def watched() -> Iterator[Raw | Reject]:
        for row in rows:
            if isinstance(row, Raw):
                values[row.origin] = row.values
            yield row

    for found in join_groups(watched(), want, separator):
        if isinstance(found, Reject):
            yield found
            continue
        own = values[found.origin]
        for origin in list(values)[:-1]:  # the last one has begun the next group
            del values[origin]
        yield found, own


@dataclass(frozen=True, slots=True)
class Valued:
    """A row's id, the value of ``text_field`` whatever its type, and those further fields that it has."""

    id: str
    value: FieldValue
    fields: Mapping[str, FieldValue]


def read_values(config: SourceConfig, fields: Collection[str] = ()) -> Iterator[Valued | Reject]:
    """Id and value of ``text_field`` of each row, lists and objects as JSON text; a Reject for each that
    lacks one of the two. Raises SourceError.
    """
    want = wanted(config, fields)
    with closing(_read_paths(config, want)) as rows:
        for row in rows:
            yield row if isinstance(row, Reject) else _valued(row, want)


def _valued(row: Raw, want: Wanted) -> Valued | Reject:
    name = row.identity if row.identity is not None else read_id(row, want)
    if isinstance(name, Reject):
        return name
    values = read_fields(row, (want.text, *want.fields))
    if isinstance(values, Reject):
        return values
    if want.text not in values:
        return reject(row, f"the field {want.text!r} is missing")
    return Valued(name, values.pop(want.text), values)


def source_files(config: SourceConfig) -> list[str]:
    """The files that the source consists of: absolute local paths (links resolved) and URLs; none for the
    Hub. Raises SourceError.
    """
    names: list[str] = []
    for place in _places(config):
        if place.read_as == "saved":
            names += sorted(str(one) for one in Path(place.path).resolve().rglob("*") if one.is_file())
        names += [file.identity for file in place.files]
    return list(dict.fromkeys(names))


def source_remarks(config: SourceConfig) -> list[str]:
    """What a person should know about which files are read; see ``folder``. Raises SourceError."""
    remarks = []
    for place in _places(config):
        if about := place.left_out:
            shown = ", ".join(file.relative for file in about[:3])
            more = f" and {len(about) - 3:,} more" if len(about) > 3 else ""
            remarks.append(
                f"{place.path}: the files of records are read, not what lies beside them ({shown}{more}); "
                f"name those themselves to have them read, too"
            )
        if place.others:
            number = counted(sum(place.others.values()), "file")
            remarks.append(f"{place.path}: {number} left out by the ending of the name: {told(place.others)}")
    return remarks


def names_in_order(config: SourceConfig) -> list[str]:
    """What rows call the files they are from (``Origin.file``), in the order in which files are read. Raises
    SourceError.
    """
    names: list[str] = []
    for place in _places(config):
        names += [file.name for file in place.files] if place.read_as == "files" else [place.path]
    return list(dict.fromkeys(names))


def _read_paths(config: SourceConfig, want: Wanted) -> Generator[Raw | Reject, None, None]:
    """Rows of all configured paths; a file that two of them stand for is read once."""
    seen: set[str] = set()
    for place in _places(config):
        yield from _read_place(place, config, want, seen)


def _read_place(
    place: _Place, config: SourceConfig, want: Wanted, seen: set[str]
) -> Generator[Raw | Reject, None, None]:
    """Rows of one configured path but those of the files ``seen``, to which it adds its own."""
    if place.read_as != "files":
        yield from _read_by_library(place, config, want)
    for file in place.files:
        if file.identity not in seen:
            seen.add(file.identity)
            yield from _read_file(file, config, want)


@dataclass(frozen=True, slots=True)
class _Place:
    """A configured path: a dataset that is read as a whole, of the Hub or saved, or the ``files`` that it
    stands for, what is about them and ``left_out``, and the ``others`` beside them by the endings of their
    names.
    """

    path: str
    read_as: Literal["hub", "saved", "files"]
    files: Sequence[SourceFile] = ()
    left_out: Sequence[SourceFile] = ()
    others: Counter[str] = field(default_factory=Counter)


def _places(config: SourceConfig) -> Iterator[_Place]:
    """All configured paths in their order, each looked up when it is reached. Raises SourceError."""
    return (_place(path, config) for path in _paths(config))


def _place(path: str, config: SourceConfig) -> _Place:
    if config.format == "hub" or (config.format == "auto" and is_hub(path)):
        return _Place(path, "hub")
    if config.format == "saved" or (config.format == "auto" and is_saved(path)):
        return _Place(path, "saved")
    return _Place(path, "files", *meant(path, config))


def _paths(config: SourceConfig) -> list[str]:
    if not config.paths or not all(config.paths):
        raise SourceError("source.path is empty; name a file, a folder, a pattern or a list of them")
    return config.paths


def _read_file(file: SourceFile, config: SourceConfig, want: Wanted) -> Iterator[Raw | Reject]:
    """Rows of one file and, where it breaks, a last Reject with the place and the reason."""
    from pipeline.sources.contents import look_into  # as in _reader

    try:
        yield from _reader(look_into(file, want), config, want)
    except DamagedFile as fault:
        yield Reject(Origin(file.name, fault.line, fault.offset), mend(fault.reason), ends_file=True)


def _reader(file: SourceFile, config: SourceConfig, want: Wanted) -> Iterator[Raw | Reject]:
    # Imported where used: pyarrow and others take longer to import than the command line may take to show its
    # help.
    from pipeline.sources import json_file, jsonl, parquet, table, text

    if file.format == "jsonl":
        return jsonl.read(file, want)
    if file.format == "json":
        return json_file.read(file, want, config.records_field)
    if file.format == "parquet":
        return parquet.read(file, want)
    return text.read(file, want) if file.format == "text" else table.read(file, want)


def _read_by_library(place: _Place, config: SourceConfig, want: Wanted) -> Iterator[Raw | Reject]:
    from pipeline.sources import hub

    read = hub.read_saved if place.read_as == "saved" else hub.read_hub
    return read(place.path, config, want)
