"""One reading of the source, entered in the ledger: rows, works to be done, rejects; large transactions, flat
memory.

Rows are told apart by document key and occurrence, never by position: reordered, they are found again;
removed ones were last seen by an older inventory; an edited one has a new key. An inventory that did not
reach the end of the source (interrupted, or limited) removes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from pipeline.records import Document, Reject, TaskJob, is_blank
from pipeline.stores.ledger.schema import inputs, inventories, rejects, storable, work

_ROWS_PER_COMMIT = 16_384


class Inventory:
    """Takes rows in reading order; ``finish`` makes it count."""

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
        self._ordinal = 0
        self._rejected = 0
        with writing() as connection:
            added = connection.execute(
                inventories.insert().values(run_id=run, complete=0, rows=0, rejected=0)
            ).inserted_primary_key
            assert added is not None
            self._id = int(added[0])
            connection.execute(rejects.delete())  # those of the latest inventory are kept

    def see(self, documents: Sequence[Document]) -> None:
        """Rows that are documents; an empty text is recorded as skipped for every task."""
        self._documents += documents
        if len(self._documents) >= _ROWS_PER_COMMIT:
            self._flush()

    def reject(self, rows: Sequence[Reject]) -> None:
        """Rows that are not. Written at once: too many of them end the run, and then they are what the user
        needs to see.
        """
        self._rejects += rows
        if rows:
            self._flush()

    def finish(self, *, complete: bool) -> None:
        """Write what is left. ``complete``: the source was read to its end, and what was not seen is gone
        from it.
        """
        self._flush()
        with self._writing() as connection:
            connection.execute(
                inventories.update().where(inventories.c.id == self._id).values(complete=int(complete))
            )

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
                )
            )
            seen[key] += 1
        _enter(connection, inputs, ("ordinal", "file", "line", "offset", "fields", "inventory_id"), rows)

    def _occurrences(self, connection: sa.Connection, keys: Sequence[str]) -> Counter[str]:
        """How often each key has been seen in this inventory so far; asked of the table, so that memory stays
        flat.
        """
        counted: Counter[str] = Counter()
        distinct = list(dict.fromkeys(keys))
        for begin in range(0, len(distinct), 500):
            some = distinct[begin : begin + 500]
            query = (
                sa.select(inputs.c.document_key, sa.func.count().label("rows"))
                .where(inputs.c.document_key.in_(some), inputs.c.inventory_id == self._id)
                .group_by(inputs.c.document_key)
            )
            counted.update({row.document_key: row.rows for row in connection.execute(query)})
        return counted

    def _enter_works(
        self, connection: sa.Connection, documents: Sequence[Document], keys: Sequence[str]
    ) -> None:
        for task_id, job in self._jobs:
            rows = {}
            for document, document_key in zip(documents, keys, strict=True):
                key = job.key_of(document_key, document.fields)
                state = "skipped" if is_blank(document.text) else "pending"
                rows[key] = (task_id, key, document_key, self._id, state, len(document.text), 0, 0)
            _enter(connection, work, ("inventory_id",), list(rows.values()))

    def _reject_row(self, reject: Reject) -> dict[str, Any]:
        return {
            "inventory_id": self._id,
            "file": reject.origin.file,
            "line": reject.origin.line,
            "offset": reject.origin.offset,
            "reason": reject.reason,
            "excerpt": reject.excerpt,
        }


def _enter(
    connection: sa.Connection, table: sa.Table, changing: Sequence[str], rows: list[tuple[Any, ...]]
) -> None:
    """Insert rows of the table's columns, or update the ``changing`` ones of those that are there.

    As plain tuples: preparing a million dictionaries takes longer than SQLite itself.
    """
    statement = insert(table).values({column: sa.bindparam(column.name) for column in table.c})
    upsert = statement.on_conflict_do_update(
        index_elements=list(table.primary_key), set_={name: statement.excluded[name] for name in changing}
    )
    connection.exec_driver_sql(str(upsert.compile(connection)), rows)
