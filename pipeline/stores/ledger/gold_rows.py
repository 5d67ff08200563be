"""True labels that people gave, as the ledger keeps them. All take an open connection."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from pipeline.stores.ledger.queries import presence
from pipeline.stores.ledger.schema import gold, in_reading, inputs, storable

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class KeptLabel:
    """A label that a person gave to the documents of an id: a name, or several of them. ``document_key`` is
    that of the text which the id stood for then, ``file`` where it was read; None: not known. ``chosen``: a
    review had picked the document. ``given_at`` in seconds of the epoch.
    """

    document_id: str
    label: str | tuple[str, ...]
    document_key: str | None
    file: str | None
    chosen: bool
    given_at: float


def kept_labels(connection: sa.Connection, task: str) -> list[KeptLabel]:
    """Labels of a task, by its name, in the order of their ids."""
    found = connection.execute(sa.select(gold).where(gold.c.task == task).order_by(gold.c.document_id))
    return [
        KeptLabel(
            row.document_id,
            row.label if isinstance(row.label, str) else tuple(row.label),
            row.document_key,
            row.file,
            bool(row.chosen),
            row.given_at,
        )
        for row in found
    ]


def keep_labels(connection: sa.Connection, task: str, labels: Iterable[KeptLabel]) -> None:
    """Keep labels, in place of those that their documents have."""
    rows = [
        {
            "task": task,
            "document_id": one.document_id,
            "label": one.label if isinstance(one.label, str) else list(one.label),
            "document_key": one.document_key,
            "file": one.file,
            "chosen": int(one.chosen),
            "given_at": one.given_at,
        }
        for one in labels
    ]
    if rows:
        connection.execute(insert(gold).prefix_with("OR REPLACE"), rows)


def remove_labels(connection: sa.Connection, task: str, ids: Iterable[str]) -> None:
    """Take the labels of these documents out."""
    rows = [{"of_id": one} for one in ids]
    if rows:
        mine = (gold.c.task == task, gold.c.document_id == sa.bindparam("of_id"))
        connection.execute(gold.delete().where(*mine), rows)


def keys_of_ids(connection: sa.Connection, ids: Collection[str]) -> dict[str, list[str]]:
    """The keys of the present documents that each id stands for; ids that stand for none are missing."""
    here = presence(connection)
    found: dict[str, list[str]] = {}
    for some in _blocks(sorted(ids)):
        query = sa.select(inputs.c.id, inputs.c.document_key).distinct()
        query = query.where(in_reading(inputs, here), inputs.c.id.in_([storable(one) for one in some]))
        for name, key in connection.execute(query):
            found.setdefault(name, []).append(key)
    return found


def _blocks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(names), _AT_ONCE):
        yield names[begin : begin + _AT_ONCE]
