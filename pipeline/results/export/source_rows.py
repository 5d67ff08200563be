"""Columns of the source beside the answers. The ledger keeps no texts, so the source is read again, once,
from its files as they are now.

A row is recognized by its document's key, id and text together, never by its position; rows that repeat each
other by their order. What a template has read must be the same, too: values beside an answer are those that
it was made from. A row that is not there as it was has nulls.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from pipeline.config import Config
from pipeline.errors import UsageError
from pipeline.records import Document, Reject
from pipeline.results.export.formats import Row
from pipeline.results.export.value_types import NOTHING, TEXT, ValueType, as_json, common, type_of
from pipeline.sources import read_columns
from pipeline.sources.rows import mend, plain
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import InputRow
from pipeline.system.atomic_write import disk_is_full, says_full

PLACE: Mapping[str, ValueType] = {"file": TEXT, "line": ValueType("integer")}
"""Columns of every export that has columns of the source: the file in which a row was read, and its line or
number, from 1, null where the row is not there as it was.
"""
_BLOCK_DOCUMENTS = 256
_BLOCK_CHARACTERS = 8_000_000
_MOST_COLUMNS = 2000
_TABLE = """
create table kept (
  key text not null, occurrence integer not null, file text not null, line integer not null,
  cells text not null, unique (key, occurrence)
)
"""
_KEEP = "insert into kept values (?, ?, ?, ?, ?)"
_FIND = "select file, line, cells from kept where key = ? and occurrence = ?"

SourceRow = tuple[Document, Mapping[str, object]]


class SourceRows:
    """Columns of the source's rows, of those that a run knows, in a file without a name that goes with this
    process. ``names``: which columns; None for all, without an id that is called so. ``own`` are the names
    that the export's other columns have. ``missing`` counts rows that were asked for and are not there.

    Raises UsageError where no row has a column that was named, StoppedEarly where the disk is full.
    """

    def __init__(
        self, ledger: Ledger, config: Config, names: Sequence[str] | None, own: Collection[str]
    ) -> None:
        self._read_by_tasks = sorted({name for task in ledger.tasks() for name in task.job.fields})
        self._names = names
        self._left_out = {"id"} if names is None and config.source.id_field == "id" else set[str]()
        self._types: dict[str, ValueType] = {}
        self._unreadable: list[str] = []
        self.missing = 0
        self._file = sqlite3.connect("", isolation_level=None)  # "": on the disk, and deleted already
        self._file.execute("pragma journal_mode = off")
        self._file.execute(_TABLE)
        try:
            self._read(ledger, config)
            self._shown = _shown_names(self._chosen(), {*own, *PLACE})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    @property
    def columns(self) -> dict[str, ValueType]:
        """What each column holds, by the name that it has in the export."""
        return {**PLACE, **{shown: self._types.get(name, NOTHING) for name, shown in self._shown.items()}}

    def cells(self, row: InputRow) -> Row:
        """Those of one input."""
        found = self._file.execute(_FIND, (row.document_key, row.occurrence)).fetchone()
        values = None if found is None else json.loads(found[2])
        if values is None or not self._as_answered(row, values):
            self.missing += 1
            return {"file": mend(row.file), "line": None, **dict.fromkeys(self._shown.values())}
        named = {shown: values.get(name) for name, shown in self._shown.items()}
        return {"file": found[0], "line": found[1], **named}

    def sentence(self) -> str | None:
        """What is to be said of the rows that were asked for."""
        if not self.missing:
            return None
        where = f" ({self._unreadable[0]})" if self._unreadable else ""
        rows = "1 row is" if self.missing == 1 else f"{self.missing:,} rows are"
        return (
            f"{rows} not in the source as read then, being removed, changed or unreadable now{where}: the "
            f"columns of the source are empty there"
        )

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, ledger: Ledger, config: Config) -> None:
        """Keep what the run knows; once that is complete, the rest of the source is left unread."""
        columns = None if self._names is None else list(dict.fromkeys([*self._names, *self._read_by_tasks]))
        known = ledger.count_rows()
        awaited = known
        with closing(read_columns(config.source, columns)) as rows:
            for block in self._blocks(rows):
                awaited -= self._keep(block, ledger)
                if not awaited:
                    break
        unknown = [name for name in self._names or () if name not in self._types]
        if unknown and awaited < known and not self._unreadable:
            there = ", ".join(repr(name[:40]) for name in list(self._types)[:20]) or "none of them"
            raise UsageError(
                f"no row of the source has the field {unknown[0]!r} that is to stand beside the answers; "
                f"of those asked for there are: {there}"
            )

    def _blocks(self, rows: Iterable[SourceRow | Reject]) -> Iterator[list[SourceRow]]:
        block: list[SourceRow] = []
        characters = 0
        for row in rows:
            if isinstance(row, Reject):
                if row.ends_file:
                    self._unreadable.append(f"{row.origin.file}: {row.reason}")
                continue
            block.append(row)
            characters += len(row[0].text)
            if len(block) == _BLOCK_DOCUMENTS or characters >= _BLOCK_CHARACTERS:
                yield block
                block, characters = [], 0
        if block:
            yield block

    def _keep(self, block: Sequence[SourceRow], ledger: Ledger) -> int:
        """Keep those rows of a block that the run knows and that are not there yet; returns how many."""
        keys = [document.key for document, _ in block]
        known = ledger.rows_among(set(keys))
        there = self._kept_of(known)
        rows = []
        for key, (document, values) in zip(keys, block, strict=True):
            if there[key] < known.get(key, 0):
                place = document.origin
                rows.append((key, there[key], place.file, place.line, self._cells(values)))
                there[key] += 1
        with _full_disk_stops():
            self._file.execute("begin")
            self._file.executemany(_KEEP, rows)
            self._file.execute("commit")
        return len(rows)

    def _kept_of(self, keys: Collection[str]) -> Counter[str]:
        """How many rows of each document are kept already."""
        marks = ", ".join("?" * len(keys))
        query = f"select key, count(*) from kept where key in ({marks}) group by key"  # noqa: S608  # only marks
        return Counter(dict(self._file.execute(query, list(keys))))

    def _cells(self, values: Mapping[str, object]) -> str:
        for name, value in values.items():
            if name not in self._left_out:
                self._types[name] = common(self._types.get(name, NOTHING), type_of(value))
        if len(self._types) > _MOST_COLUMNS:
            raise UsageError(
                f"the source has more than {_MOST_COLUMNS:,} different columns; name those that are to stand "
                f"beside the answers"
            )
        return json.dumps({name: as_json(value) for name, value in values.items()})

    # ── showing ─────────────────────────────────────────────────────────────────────────────────────────────

    def _chosen(self) -> list[str]:
        return list(self._types) if self._names is None else list(dict.fromkeys(self._names))

    def _as_answered(self, row: InputRow, values: Mapping[str, Any]) -> bool:
        """Whether what templates read of the row is what they read of it then; absent is null."""
        return all(row.fields.get(name) == plain(values.get(name)) for name in self._read_by_tasks)


def _shown_names(names: Sequence[str], own: Collection[str]) -> dict[str, str]:
    """What the columns are called in the export: by their names, with ``source_`` in front where that is the
    name of one of ours, or nothing.
    """
    shown = {name: mend(name) for name in names if name and mend(name) not in own}
    for name in names:
        new = mend(name)
        while new in own or not new or (name not in shown and new in shown.values()):
            new = f"source_{new}"
        shown[name] = new
    return {name: shown[name] for name in names}


@contextmanager
def _full_disk_stops() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if says_full(error):
            raise disk_is_full("temporary files (TMPDIR)") from None
        raise
