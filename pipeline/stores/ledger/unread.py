"""Rows that a reading of the source has not seen and yet keeps.

A file that was read whole settles what of it is gone, and one that is no longer there is gone. In doubt is
only what lay where the reading could not look: where a file breaks, and, of a reading that was to stop early,
behind the place where it stopped. A row of the reading before lay there if those around it that were found
again say so; where these have changed their order nothing can be told, and all of the file stays in doubt. A
row whose id was read in its file with another text was edited, and is gone.
"""

from __future__ import annotations

import json
import os
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from pipeline.records import Document
from pipeline.stores.ledger.schema import in_reading, inputs

UNREADABLE = "unreadable"
LEFT_OUT = "left out"
_NOT_FOUND = -1
# what tells a row and its place in its file
_TOLD_BY = [
    inputs.c[name] for name in ("number", "document_key", "file", "line", "offset", "ordinal", "unread")
]


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a reading stopped that was not to go on: before ``document``, with ``files`` still to come.
    Without them all that it has not seen is left out.
    """

    document: Document | None = None
    files: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A row, by its number in the table, that stays present, in front of the seen one of that ordinal."""

    row: int
    ordinal: int
    why: str


_scratch = sa.MetaData()
# The rows that the reading before had of files, file by file, in their order; ``found``: the ordinal under
# which one was found again. On the disk, for there may be more of them than memory holds.
_old = sa.Table(
    "rows_before",
    _scratch,
    sa.Column("place", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("file", sa.Text, nullable=False),
    sa.Column("line", sa.Integer, nullable=False),
    sa.Column("offset", sa.Integer, nullable=False),
    sa.Column("found", sa.Integer),
    prefixes=["TEMPORARY"],
)
# The rows that were seen now; each ``nth`` of its document in its file.
_new = sa.Table(
    "rows_now",
    _scratch,
    sa.Column("file", sa.Text, primary_key=True),
    sa.Column("document_key", sa.Text, primary_key=True),
    sa.Column("nth", sa.Integer, primary_key=True),
    sa.Column("ordinal", sa.Integer, nullable=False),
    prefixes=["TEMPORARY"],
    sqlite_with_rowid=False,
)
# Those of the rows before that stay, in the order in which they were decided on; without an ``ordinal``: at
# the end.
_staying = sa.Table(
    "rows_staying",
    _scratch,
    sa.Column("place", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False, unique=True),
    sa.Column("ordinal", sa.Integer),
    sa.Column("why", sa.Text, nullable=False),
    prefixes=["TEMPORARY"],
)
_FOUND = _old.c.found.is_not(None)


@dataclass(frozen=True, slots=True)
class _OldFile:
    """The rows that the reading before had of one file: those of ``_old`` from one place to another."""

    name: str
    first: int
    last: int

    @property
    def rows(self) -> sa.ColumnElement[bool]:
        """All of them."""
        return _old.c.place.between(self.first, self.last)

    @property
    def missing(self) -> sa.ColumnElement[bool]:
        """Those that were not found again."""
        return self.rows & ~_FOUND

    def in_order(self, connection: sa.Connection) -> bool:
        """Whether the rows that were found again follow each other as they did."""
        one_before = sa.func.lag(_old.c.found).over(order_by=_old.c.place).label("one_before")
        again = sa.select(_old.c.found, one_before).where(self.rows, _FOUND).subquery()
        turned = sa.exists().where(again.c.found <= again.c.one_before)
        return not connection.execute(sa.select(turned)).scalar_one()

    def behind(
        self, connection: sa.Connection, breaks: Sequence[int]
    ) -> Iterator[tuple[sa.ColumnElement[bool], int]]:
        """Rows that may lie where the file breaks, each with that break: the ordinal of the row that was seen
        next. ``breaks`` ascend.
        """
        if not self.in_order(connection):
            yield self.missing, breaks[-1]
            return
        for first, last, before, after in _gaps(connection, self.rows):
            at = bisect_right(breaks, before)
            if at < len(breaks) and breaks[at] <= after:
                yield _old.c.place.between(first, last), breaks[at]

    def behind_stop(self, connection: sa.Connection, document: Document) -> sa.ColumnElement[bool]:
        """Rows that may lie at ``document``, or behind it."""
        known_at = self._known_at(connection, document)
        last = connection.execute(sa.select(sa.func.max(_old.c.place)).where(self.rows, _FOUND)).scalar()
        last = self.first - 1 if last is None else int(last)
        if not self.in_order(connection) or (known_at is not None and last > known_at):
            return self.missing
        if known_at is not None:
            return self.missing & (_old.c.place >= known_at)
        line, offset = document.origin.line, document.origin.offset or 0
        behind = (_old.c.line > line) | ((_old.c.line == line) & (_old.c.offset >= offset))
        return self.missing & (_old.c.place > last) & behind

    def _known_at(self, connection: sa.Connection, document: Document) -> int | None:
        """The place at which a document was known that has not been seen now; None if it was not."""
        same = sa.select(sa.func.min(_old.c.place)).join(inputs, inputs.c.number == _old.c.number)
        found = connection.execute(same.where(inputs.c.document_key == document.key, self.missing)).scalar()
        return None if found is None else int(found)


def _gaps(connection: sa.Connection, rows: sa.ColumnElement[bool]) -> Iterator[tuple[int, int, int, int]]:
    """Runs of ``rows`` that were not found again, by their first and last place, with the ordinals of those
    found before and after them.
    """
    begin, before, place = None, _NOT_FOUND, 0
    query = sa.select(_old.c.place, _old.c.found).where(rows).order_by(_old.c.place)
    for place, found in connection.execute(query):  # the last one is needed below
        if found is None:
            begin = place if begin is None else begin
            continue
        if begin is not None:
            yield begin, place - 1, before, found
        begin, before = None, found
    if begin is not None:
        yield begin, place, before, sys.maxsize


def kept_rows(
    connection: sa.Connection,
    before: int,
    now: int,
    breaks: Mapping[str, Sequence[int]],
    stop: Stop | None,
    seen: int,
) -> Iterator[Kept]:
    """Rows of the reading ``before`` that the reading ``now`` keeps: it has seen ``seen`` rows, met with
    ``breaks`` in files, each the ordinal of the row that came next, and stopped at ``stop``. All is decided
    before the first is given. Memory stays flat; to be taken to its end.
    """
    if not breaks and stop is None:
        return
    stopped_at = stop.document if stop else None
    looked_into = {*breaks} if stopped_at is None else {*breaks, stopped_at.origin.file}
    _spell_alike(connection, before, [*looked_into, *(stop.files if stop else ())])
    everywhere = stop is not None and stop.document is None
    _scratch.create_all(connection, checkfirst=False)
    for old in _old_files(connection, before, now, None if everywhere else sorted(looked_into)):
        for rows, ordinal in old.behind(connection, breaks[old.name]) if old.name in breaks else ():
            _let_stay(connection, rows, UNREADABLE, ordinal)
        if everywhere:
            _let_stay(connection, old.missing, LEFT_OUT)
        elif stopped_at is not None and old.name == stopped_at.origin.file:
            _let_stay(connection, old.behind_stop(connection, stopped_at), LEFT_OUT)
    if stop is not None and stop.files:
        _let_files_stay(connection, before, stop.files)
    yield from _staying_in_order(connection, seen)
    _scratch.drop_all(connection, checkfirst=False)


def _let_stay(
    connection: sa.Connection, rows: sa.ColumnElement[bool], why: str, ordinal: int | None = None
) -> None:
    """Those of ``_old`` that do not stay already."""
    chosen = sa.select(_old.c.number, sa.literal(ordinal, sa.Integer), sa.literal(why)).where(rows)
    _fill(connection, chosen.order_by(_old.c.place))


def _let_files_stay(connection: sa.Connection, before: int, names: Sequence[str]) -> None:
    """All rows that the reading ``before`` had of these files, in their order."""
    chosen = sa.select(inputs.c.number, sa.null(), sa.literal(LEFT_OUT))
    _fill(connection, chosen.where(inputs.c.inventory_id == before, _among(names)).order_by(*in_order()))


def _fill(connection: sa.Connection, chosen: sa.Select[Any]) -> None:
    names = ["number", "ordinal", "why"]
    connection.execute(_staying.insert().prefix_with("OR IGNORE").from_select(names, chosen))


def _staying_in_order(connection: sa.Connection, seen: int) -> Iterator[Kept]:
    ordered = sa.select(_staying).order_by(_staying.c.ordinal.is_(None), _staying.c.place)
    at_the_end = seen
    for row in connection.execute(ordered):
        at_the_end += row.ordinal is None
        yield Kept(row.number, at_the_end if row.ordinal is None else row.ordinal, row.why)


def edited(connection: sa.Connection, before: int, now: int, rows: Sequence[int]) -> set[int]:
    """Those of ``rows``, numbers of the reading ``before``, whose ids ``now`` has seen in their file with a
    text that was not there.
    """
    old, new, known = inputs.alias(), inputs.alias(), inputs.alias()
    was_there = sa.exists().where(
        known.c.document_key == new.c.document_key,
        in_reading(known, before),
        known.c.file == new.c.file,
    )
    again = (new.c.id == old.c.id) & (new.c.file == old.c.file) & in_reading(new, now)
    query = sa.select(old.c.number).join(new, again).where(old.c.number.in_(rows), ~was_there)
    return set(connection.execute(query).scalars())


def _old_files(
    connection: sa.Connection, before: int, now: int, names: Sequence[str] | None
) -> list[_OldFile]:
    """Fill ``_old`` with the rows that the reading ``before`` had of the files called ``names``, or of all,
    beside what ``now`` has seen of them; a repeated row is found as often as it was seen in its file.
    """

    def counted(reading: int) -> sa.CTE:
        alike = inputs.c.file, inputs.c.document_key
        nth = sa.func.row_number().over(partition_by=alike, order_by=in_order()).label("nth")
        query = sa.select(*_TOLD_BY, nth).where(inputs.c.inventory_id == reading)
        return (query if names is None else query.where(_among(names))).cte()

    seen, old = counted(now), counted(before)
    columns = [column.name for column in _new.c]
    connection.execute(_new.insert().from_select(columns, sa.select(*(seen.c[name] for name in columns))))
    same = (
        (_new.c.file == old.c.file) & (_new.c.document_key == old.c.document_key) & (_new.c.nth == old.c.nth)
    )
    rows = sa.select(
        old.c.number, old.c.file, old.c.line, sa.func.coalesce(old.c.offset, 0), _new.c.ordinal
    ).select_from(old.outerjoin(_new, same))
    columns = ["number", "file", "line", "offset", "found"]
    connection.execute(_old.insert().from_select(columns, rows.order_by(old.c.file, *in_order(old))))
    place = _old.c.place
    files = sa.select(_old.c.file, sa.func.min(place), sa.func.max(place)).group_by(_old.c.file)
    return [_OldFile(*row) for row in connection.execute(files.order_by(sa.func.min(place)))]


def in_order(table: sa.FromClause = inputs) -> tuple[sa.ColumnElement[Any], ...]:
    """How the rows of a reading are sorted: those that it keeps unread in front of a seen one."""
    return table.c.ordinal, table.c.unread.is_(None), table.c.line, table.c.offset


def _among(names: Sequence[str]) -> sa.ColumnElement[bool]:
    """Rows of the files called so, however many these are."""
    listed = sa.func.json_each(json.dumps(list(names))).table_valued("value")
    return inputs.c.file.in_(sa.select(listed.c.value))


def _spell_alike(connection: sa.Connection, before: int, names: Iterable[str]) -> None:
    """Have the reading ``before`` call files as they are called now: ``docs/a`` was ``./docs/a``, perhaps."""
    spelled = {_place(name): name for name in names}
    known = sa.select(inputs.c.file).where(inputs.c.inventory_id == before).distinct()
    for old in connection.execute(known).scalars().all():
        new = spelled.get(_place(old), old)
        if new != old:
            same = (inputs.c.inventory_id == before, inputs.c.file == old)
            connection.execute(inputs.update().where(*same).values(file=new))


def _place(name: str) -> str:
    return name if "://" in name else os.path.realpath(name)
