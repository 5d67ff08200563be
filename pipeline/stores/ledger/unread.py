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
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from pipeline.records import Document
from pipeline.stores.ledger.schema import inputs

UNREADABLE = "unreadable"
LEFT_OUT = "left out"
_NOT_FOUND = -1


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


@dataclass(slots=True)
class _OldFile:
    """The rows that the reading before had of one file, in their order: their numbers in the table, the
    ordinals under which they were found again, and where they lay.
    """

    rows: array[int] = field(default_factory=lambda: array("q"))
    found: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))

    def add(self, row: Any) -> None:
        """The next row."""
        self.rows.append(row.number)
        self.found.append(_NOT_FOUND if row.found is None else row.found)
        self.lines.append(row.line)
        self.offsets.append(row.offset or 0)

    def missing(self) -> list[int]:
        """Places in ``rows`` of those that were not found again."""
        return [place for place, found in enumerate(self.found) if found == _NOT_FOUND]

    def in_order(self) -> bool:
        """Whether the rows that were found again follow each other as they did."""
        again = (found for found in self.found if found != _NOT_FOUND)
        return all(one < other for one, other in pairwise(again))

    def behind(self, breaks: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Places of rows that may lie where the file breaks, each with that break: the ordinal of the row
        that was seen next. ``breaks`` ascend.
        """
        if not self.in_order():
            yield from ((place, breaks[-1]) for place in self.missing())
            return
        for places, before, after in _gaps(self.found):
            first = bisect_right(breaks, before)
            if first < len(breaks) and breaks[first] <= after:
                yield from ((place, breaks[first]) for place in places)

    def behind_stop(self, document: Document, known_at: int | None) -> list[int]:
        """Places of rows that may lie at ``document``, which was the one at ``known_at`` if it was known, or
        behind it.
        """
        missing = self.missing()
        last = max((place for place, found in enumerate(self.found) if found != _NOT_FOUND), default=-1)
        if not self.in_order() or (known_at is not None and last > known_at):
            return missing
        if known_at is not None:
            return [place for place in missing if place >= known_at]
        stop = document.origin.line, document.origin.offset or 0
        return [
            place for place in missing if place > last and (self.lines[place], self.offsets[place]) >= stop
        ]


def _gaps(found: Sequence[int]) -> Iterator[tuple[range, int, int]]:
    """Runs of rows that were not found again, with the ordinals of those found before and after them."""
    begin, before = 0, _NOT_FOUND
    for place, ordinal in enumerate(found):
        if ordinal == _NOT_FOUND:
            continue
        if begin < place:
            yield range(begin, place), before, ordinal
        begin, before = place + 1, ordinal
    if begin < len(found):
        yield range(begin, len(found)), before, sys.maxsize


def kept_rows(
    connection: sa.Connection,
    before: int,
    now: int,
    breaks: Mapping[str, Sequence[int]],
    stop: Stop | None,
    seen: int,
) -> Iterator[Kept]:
    """Rows of the reading ``before`` that the reading ``now`` keeps: it has seen ``seen`` rows, met with
    ``breaks`` in files, each the ordinal of the row that came next, and stopped at ``stop``.
    """
    if not breaks and stop is None:
        return
    stopped_in = stop.document.origin.file if stop and stop.document else None
    looked_into = {*breaks} if stopped_in is None else {*breaks, stopped_in}
    _spell_alike(connection, before, [*looked_into, *(stop.files if stop else ())])
    all_files = stop is not None and stop.document is None
    left_out: list[int] = []
    for name, old in _old_files(connection, before, now, None if all_files else sorted(looked_into)):
        doubtful = dict(old.behind(breaks[name])) if name in breaks else {}
        yield from (Kept(old.rows[place], ordinal, UNREADABLE) for place, ordinal in doubtful.items())
        behind = old.missing() if all_files else []
        if stop is not None and stop.document is not None and name == stopped_in:
            behind = old.behind_stop(stop.document, _known_at(connection, before, old, stop.document))
        left_out += [old.rows[place] for place in behind if place not in doubtful]
    left_out += _rows_of(connection, before, stop.files if stop else ())
    yield from (Kept(row, seen + 1 + number, LEFT_OUT) for number, row in enumerate(left_out))


def edited(connection: sa.Connection, before: int, now: int, rows: Sequence[int]) -> set[int]:
    """Those of ``rows``, numbers of the reading ``before``, whose ids ``now`` has seen in their file with a
    text that was not there.
    """
    old, new, known = inputs.alias(), inputs.alias(), inputs.alias()
    was_there = sa.exists().where(
        known.c.document_key == new.c.document_key,
        known.c.inventory_id == before,
        known.c.file == new.c.file,
    )
    again = (new.c.id == old.c.id) & (new.c.file == old.c.file) & (new.c.inventory_id == now)
    query = sa.select(old.c.number).join(new, again).where(old.c.number.in_(rows), ~was_there)
    return set(connection.execute(query).scalars())


def _old_files(
    connection: sa.Connection, before: int, now: int, names: Sequence[str] | None
) -> Iterator[tuple[str, _OldFile]]:
    """The files called ``names``, or all, as the reading ``before`` had them, beside what ``now`` has seen of
    them; a repeated row is found as often as it was seen in its file.
    """

    def counted(reading: int) -> sa.CTE:
        alike = inputs.c.file, inputs.c.document_key
        nth = sa.func.row_number().over(partition_by=alike, order_by=in_order())
        query = sa.select(inputs, nth.label("nth")).where(inputs.c.inventory_id == reading)
        return (query if names is None else query.where(_among(names))).cte()

    old, new = counted(before), counted(now)
    same = (old.c.file == new.c.file) & (old.c.document_key == new.c.document_key) & (old.c.nth == new.c.nth)
    query = (
        sa.select(old.c.number, old.c.file, old.c.line, old.c.offset, new.c.ordinal.label("found"))
        .select_from(old.outerjoin(new, same))
        .order_by(old.c.file, *in_order(old))
    )
    for name, rows in groupby(connection.execute(query), attrgetter("file")):
        old_file = _OldFile()
        for row in rows:
            old_file.add(row)
        yield name, old_file


def _known_at(connection: sa.Connection, before: int, old: _OldFile, document: Document) -> int | None:
    """The place in ``old`` at which a document was known that has not been seen now; None if it was not."""
    same = sa.select(inputs.c.number).where(
        inputs.c.document_key == document.key, inputs.c.inventory_id == before
    )
    numbers = set(connection.execute(same).scalars())
    return next((place for place in old.missing() if old.rows[place] in numbers), None)


def _rows_of(connection: sa.Connection, before: int, names: Sequence[str]) -> list[int]:
    """Numbers of the rows that the reading ``before`` had of these files, in their order."""
    query = sa.select(inputs.c.number).where(inputs.c.inventory_id == before, _among(names))
    return list(connection.execute(query.order_by(*in_order())).scalars()) if names else []


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
