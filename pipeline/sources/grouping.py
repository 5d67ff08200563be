"""Joins rows that share a field (retrieved chunks, pages) into one document. Rows of a group must be adjacent
in the source.

A group that comes back later is not joined, for its document has been given out already: its rows are
rejected. Only digests of finished groups are remembered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.records import Document, FieldValue, Origin, Reject
from pipeline.sources.rows import Raw, Wanted, describe, plain, read_fields, read_id, read_text, reject

_Place = tuple[int, float, str]


@dataclass(frozen=True, slots=True)
class _Member:
    """A row that belongs to the open group; ``order`` sorts it among the others."""

    order: FieldValue
    text: str
    origin: Origin
    fields: dict[str, FieldValue]


def join_groups(rows: Iterable[Raw | Reject], want: Wanted, separator: str) -> Iterator[Document | Reject]:
    """One document a group: id = the group's value, texts joined in order, fields and origin of the first row
    in that order.

    A rejected row rejects only itself; the rest of its group is joined without it.
    """
    finished: set[bytes] = set()
    name: str | None = None
    members: list[_Member] = []
    for row in rows:
        if isinstance(row, Reject):
            yield row
            continue
        found = _read_member(row, want)
        if isinstance(found, Reject):
            yield found
            continue
        group, member = found
        if group != name:
            if name is not None:
                yield _document(name, members, separator)
                finished.add(_short_digest(name))
            name, members = None, []
            if _short_digest(group) in finished:
                yield _late(row, group, want)
                continue
            name = group
        members.append(member)
    if name is not None:
        yield _document(name, members, separator)


def _read_member(raw: Raw, want: Wanted) -> tuple[str, _Member] | Reject:
    group = read_id(raw, want)
    if isinstance(group, Reject):
        return group
    text = read_text(raw, want)
    if isinstance(text, Reject):
        return text
    order = plain(raw.values.get(want.order)) if want.order is not None else None
    if want.order is not None and (order is None or isinstance(order, bool)):
        found = describe(raw.values[want.order]) if want.order in raw.values else "missing"
        return reject(
            raw, f"the order field {want.order!r} of the group is {found}; it must be a number or a string"
        )
    fields = read_fields(raw, want.fields)
    return fields if isinstance(fields, Reject) else (group, _Member(order, text, raw.origin, fields))


def _late(row: Raw, group: str, want: Wanted) -> Reject:
    remedy = f"sort the source by {want.id!r}, so that rows of a group are adjacent"
    return reject(row, f"the group {group[:80]!r} ended earlier and comes back here; {remedy}")


def _document(name: str, members: list[_Member], separator: str) -> Document:
    numeric = all(_number(member.order) is not None for member in members)
    joined = sorted(members, key=lambda member: _place(member.order, numeric))
    return Document(
        name, separator.join(member.text for member in joined), joined[0].origin, joined[0].fields
    )


def _place(order: FieldValue, numeric: bool) -> _Place:
    """Sorts by number where all members have one ("10" after "9" in CSV too), else as text; equal ones stay
    as they came.
    """
    number = _number(order) if numeric else None
    return (0, number, "") if number is not None else (1, 0.0, "" if order is None else str(order))


def _number(order: FieldValue) -> float | None:
    try:
        return float(order) if isinstance(order, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _short_digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8"), digest_size=12).digest()
