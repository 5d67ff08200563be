"""One reading of the source, entered in the ledger: rows, works to be done, rejects; large transactions, flat
memory.

Rows are told apart by document key, never by position: reordered, they are found again, and an edited one has
a new key. A reading counts as a whole, once it is settled: then what it saw is present, beside the rows of
the one before that it did not look at (``unread.py``). One that was interrupted, or refused, changes nothing.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import Insert, insert

from pipeline.records import Document, Reject, TaskJob, is_blank
from pipeline.stores.ledger.queries import presence
from pipeline.stores.ledger.schema import in_reading, inputs, inventories, rejects, storable, work
from pipeline.stores.ledger.unread import UNREADABLE, Kept, Stop, edited, kept_rows

_ROWS_PER_COMMIT = 16_384
_KEPT_AT_ONCE = 500
_FINISHED = ("done", "failed", "quarantined", "skipped")


class Inventory:
    """Takes what a reading gives, in its order; ``finish`` makes it count."""

    def __init__(
        self,
        writing: Callable[[], AbstractContextManager[sa.Connection]],
        run: int,
        jobs: Sequence[tuple[int, TaskJob]],
    ) -> None:
        self._writing = writing
        self._jobs = jobs
        self._documents: list[Document] = []
        self._rejects: list[Reject] = []
        self._breaks: dict[str, list[int]] = {}
        self._ordinal = 0
        self._rejected = 0
        with writing() as connection:
            self._before = presence(connection)
            added = connection.execute(
                inventories.insert().values(run_id=run, complete=0, rows=0, rejected=0)
            ).inserted_primary_key
            assert added is not None
            self._id = int(added[0])
            # of a reading that came to no end; but the rejects of the latest are kept
            connection.execute(inputs.delete().where(inputs.c.inventory_id != self._before))
            connection.execute(rejects.delete())

    def enter(self, items: Iterable[Document | Reject]) -> None:
        """Rows in reading order. An empty text is recorded as skipped for every task. Rejects are written at
        once: too many of them end the run, and then they are what the user needs to see.
        """
        for item in items:
            if isinstance(item, Document):
                self._documents.append(item)
                continue
            self._rejects.append(item)
            if item.ends_file:
                self._breaks.setdefault(storable(item.origin.file), []).append(
                    self._ordinal + len(self._documents)
                )
        if self._rejects or len(self._documents) >= _ROWS_PER_COMMIT:
            self._flush()

    def finish(self, stop: Stop | None = None) -> None:
        """Write what is left, and let the reading count. ``stop``: it was not to go on to the end."""
        self._flush()
        with self._writing() as connection:
            if self._before:
                self._keep(connection, stop)
            connection.execute(
                inventories.update()
                .where(inventories.c.id == self._id)
                .values(
                    settled=1,
                    complete=int(stop is None and not self._breaks),
                    limited=int(stop is not None),
                    damaged=len(self._breaks),
                )
            )
            connection.execute(inputs.delete().where(inputs.c.inventory_id != self._id))

    def _flush(self) -> None:
        documents, self._documents = self._documents, []
        rejected, self._rejects = self._rejects, []
        with self._writing() as connection:
            if documents:
                keys = [document.key for document in documents]
                self._enter_inputs(connection, documents, keys)
                self._enter_works(connection, documents, keys)
            if rejected:
                connection.execute(rejects.insert(), [self._reject_row(reject) for reject in rejected])
            self._ordinal += len(documents)
            self._rejected += len(rejected)
            counted = inventories.update().where(inventories.c.id == self._id)
            connection.execute(counted.values(rows=self._ordinal, rejected=self._rejected))

    def _enter_inputs(
        self, connection: sa.Connection, documents: Sequence[Document], keys: Sequence[str]
    ) -> None:
        seen = self._occurrences(connection, keys)
        rows = []
        for ordinal, (document, key) in enumerate(zip(documents, keys, strict=True), self._ordinal):
            origin, fields = document.origin, document.fields
            rows.append(
                (
                    None,
                    key,
                    seen[key],
                    storable(document.id),
                    ordinal,
                    storable(origin.file),
                    origin.line,
                    origin.offset,
                    json.dumps(dict(fields)) if fields else None,
                    len(document.text),
                    self._id,
                    None,
                )
            )
            seen[key] += 1
        connection.exec_driver_sql(str(_statement(inputs).compile(connection)), rows)

    def _occurrences(self, connection: sa.Connection, keys: Sequence[str]) -> Counter[str]:
        """How often each key is in this inventory so far; asked of the table, so that memory stays flat."""
        counted: Counter[str] = Counter()
        distinct = list(dict.fromkeys(keys))
        for begin in range(0, len(distinct), 500):
            some = distinct[begin : begin + 500]
            query = (
                sa.select(inputs.c.document_key, sa.func.count().label("rows"))
                .where(inputs.c.document_key.in_(some), in_reading(inputs, self._id))
                .group_by(inputs.c.document_key)
            )
            counted.update({row.document_key: row.rows for row in connection.execute(query)})
        return counted

    def _enter_works(
        self, connection: sa.Connection, documents: Sequence[Document], keys: Sequence[str]
    ) -> None:
        """New works, and for known ones that they were seen; what was present until now stays so if this
        reading comes to nothing.
        """
        statement = _statement(work)
        before: sa.ColumnClause[int] = sa.literal_column(str(self._before))
        was_present = (work.c.inventory_id == before) | (work.c.kept_id == before)
        seen = statement.on_conflict_do_update(
            index_elements=list(work.primary_key),
            set_={
                "inventory_id": statement.excluded.inventory_id,
                "kept_id": sa.case((was_present, before)),
            },
        )
        sql = str(seen.compile(connection))
        for task_id, job in self._jobs:
            rows = {}
            for document, document_key in zip(documents, keys, strict=True):
                key = job.key_of(document_key, document.fields)
                state = "skipped" if is_blank(document.text) else "pending"
                rows[key] = (task_id, key, document_key, self._id, state, len(document.text), 0, 0, None)
            connection.exec_driver_sql(sql, list(rows.values()))

    def _reject_row(self, reject: Reject) -> dict[str, Any]:
        return {
            "inventory_id": self._id,
            "file": reject.origin.file,
            "line": reject.origin.line,
            "offset": reject.origin.offset,
            "reason": reject.reason,
            "excerpt": reject.excerpt,
        }

    # ── what was not looked at ──────────────────────────────────────────────────────────────────────────────

    def _keep(self, connection: sa.Connection, stop: Stop | None) -> None:
        """Rows of the reading before that this one has not looked at stay present, with their works."""
        doubtful = kept_rows(connection, self._before, self._id, self._breaks, stop, self._ordinal)
        everywhere = stop is not None and stop.document is None  # nothing is known of any place
        while some := list(itertools.islice(doubtful, _KEPT_AT_ONCE)):
            numbers = [] if everywhere else [row.row for row in some]
            gone = edited(connection, self._before, self._id, numbers)
            self._keep_rows(connection, [row for row in some if row.row not in gone])

    def _keep_rows(self, connection: sa.Connection, kept: Sequence[Kept]) -> None:
        """Enter rows of the reading before again, in their order, and keep their works. What cannot be read
        is kept for its answers: a row that has none is not.
        """
        found = connection.execute(sa.select(inputs).where(inputs.c.number.in_([row.row for row in kept])))
        known = {row["number"]: dict(row) for row in found.mappings()}
        answered = self._answered(connection, known.values())
        staying = [row for row in kept if row.why != UNREADABLE or known[row.row]["document_key"] in answered]
        seen = self._occurrences(connection, [known[row.row]["document_key"] for row in staying])
        rows, works = [], []
        for row in staying:
            old = known[row.row]
            key = old["document_key"]
            new = {"inventory_id": self._id, "ordinal": row.ordinal, "unread": row.why}
            rows.append({**old, **new, "number": None, "occurrence": seen[key]})
            seen[key] += 1
            fields = old["fields"] or {}
            works += [{"of_task": task, "of_key": job.key_of(key, fields)} for task, job in self._jobs]
        if rows:
            connection.execute(inputs.insert(), rows)
        if works:
            mine = (work.c.task_id == sa.bindparam("of_task"), work.c.key == sa.bindparam("of_key"))
            connection.execute(work.update().where(*mine).values(kept_id=self._id), works)

    def _answered(self, connection: sa.Connection, rows: Collection[Mapping[str, Any]]) -> set[str]:
        """Keys of the documents of ``rows`` that some task has finished."""
        answered = set()
        for task_id, job in self._jobs:
            keys = {job.key_of(row["document_key"], row["fields"] or {}): row["document_key"] for row in rows}
            mine = (work.c.task_id == task_id, work.c.key.in_(list(keys)))
            # states are looked at here: with them, SQLite would go through all that is finished
            states = connection.execute(sa.select(work.c.key, work.c.state).where(*mine))
            answered |= {keys[key] for key, state in states if state in _FINISHED}
        return answered


def _statement(table: sa.Table) -> Insert:
    """A row of the table from a plain tuple: preparing a million dictionaries takes longer than SQLite
    itself.
    """
    return insert(table).values({column: sa.bindparam(column.name) for column in table.c})
