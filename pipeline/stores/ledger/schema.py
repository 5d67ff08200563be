"""The tables of the ledger, and how its file is opened: SQLite in WAL mode, every commit on the disk before
it counts.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    Engine,
    Float,
    ForeignKey,
    FromClause,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    QueuePool,
    Table,
    TypeDecorator,
    create_engine,
    event,
)
from sqlalchemy import Text as SqlText
from sqlalchemy.exc import OperationalError

metadata = MetaData()


class Text(TypeDecorator[str]):
    """Text that SQLite takes whatever it holds, lone surrogates (undecodable file names, JSON escapes)
    included.
    """

    impl = SqlText
    cache_ok = True

    def process_bind_param(self, value: str | None, _: Any) -> str | None:
        """What is stored for ``value``."""
        return value if value is None else storable(value)


def in_reading(table: FromClause, reading: int) -> ColumnElement[bool]:
    """Whether a row of ``inputs`` is of that reading, where the rows are found by something else: given both,
    SQLite takes the index of readings, and goes through a whole one for a few rows.
    """
    return table.c.inventory_id + 0 == reading


def storable(text: str) -> str:
    r"""``text`` with lone surrogates as ``\udcff``."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


meta = Table("meta", metadata, Column("name", Text, primary_key=True), Column("value", JSON, nullable=False))

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("exit_code", Integer),
    Column("reason", Text),
    Column("facts", JSON, nullable=False),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("identity", JSON, nullable=False),
    Column("fields", JSON, nullable=False),
    Column("active", Integer, nullable=False),
    Index("tasks_by_name", "name", "version", unique=True),
)

# One reading of the source. It counts once it is ``settled``, and the latest that does says what is present.
# ``damaged`` files could not be read to their end; ``complete``: none, and the reading was not ``limited``.
inventories = Table(
    "inventories",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("complete", Integer, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("rejected", Integer, nullable=False),
    Column("settled", Integer, nullable=False, server_default="0"),
    Column("limited", Integer, nullable=False, server_default="0"),
    Column("damaged", Integer, nullable=False, server_default="0"),
)

# The rows of a reading, each entered anew; those of earlier ones go when it is settled. ``occurrence``: n-th
# row with this key in it, so that a repeated row is exported in its own place. ``unread``: why the reading
# keeps a row of the one before that it has not seen (``unread.py``); such a row stands before a seen one of
# its ordinal. Rows lie in the order of their entry: kept in the order of their keys, which are random, every
# commit would rewrite most pages of a large table.
inputs = Table(
    "inputs",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("document_key", Text, nullable=False),
    Column("occurrence", Integer, nullable=False),
    Column("id", Text, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("file", Text, nullable=False),
    Column("line", Integer, nullable=False),
    Column("offset", Integer),
    Column("fields", JSON),
    Column("characters", Integer, nullable=False),
    Column("inventory_id", Integer, nullable=False),
    Column("unread", Text),
    Index("inputs_by_document", "document_key"),
    Index("inputs_by_id", "id"),
    Index("inputs_in_order", "inventory_id", "ordinal"),
)

rejects = Table(
    "rejects",
    metadata,
    Column("inventory_id", Integer, nullable=False, index=True),
    Column("file", Text, nullable=False),
    Column("line", Integer, nullable=False),
    Column("offset", Integer),
    Column("reason", Text, nullable=False),
    Column("excerpt", Text, nullable=False),
)

# ``inventory_id``: the latest reading that saw a document of it. ``kept_id``: a settled reading in which it
# is present all the same, because that keeps its row, or because a later one, not settled yet, saw it since.
work = Table(
    "work",
    metadata,
    Column("task_id", ForeignKey("tasks.id"), nullable=False),
    Column("key", Text, nullable=False),
    Column("document_key", Text, nullable=False),
    Column("inventory_id", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("characters", Integer, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("crashes", Integer, nullable=False, server_default="0"),
    Column("kept_id", Integer),
    PrimaryKeyConstraint("task_id", "key"),
    Index("work_by_state", "task_id", "state"),
)

results = Table(
    "results",
    metadata,
    Column("task_id", Integer, nullable=False),
    Column("key", Text, nullable=False),
    Column("run_id", Integer, nullable=False),
    Column("recorded_at", Float, nullable=False),
    Column("value", JSON),
    Column("finish_reason", Text),
    Column("probabilities", JSON),
    Column("scores", JSON),
    Column("raw", Text),
    Column("tokens_in", Integer, nullable=False),
    Column("tokens_out", Integer, nullable=False),
    Column("tokens_dropped", Integer, nullable=False),
    Column("parts", Integer, nullable=False),
    Column("notes", JSON),
    Column("failure_kind", Text),
    Column("failure_message", Text),
    Column("failure_attempt", Integer),
    Column("seconds", Float, nullable=False),
    Column("placement", Text, nullable=False),
    Column("batch_rows", Integer, nullable=False),
    PrimaryKeyConstraint("task_id", "key"),
    sqlite_with_rowid=False,
)

# An open attempt (no outcome) was being worked on when its process ended, or is being worked on now.
attempts = Table(
    "attempts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("task_id", Integer, nullable=False),
    Column("key", Text, nullable=False),
    Column("run_id", Integer, nullable=False),
    Column("number", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("outcome", Text),
    Column("detail", Text),
    Index("attempts_by_work", "task_id", "key"),
)
Index("attempts_open", attempts.c.task_id, attempts.c.key, sqlite_where=attempts.c.outcome.is_(None))

# Replies inside unfinished documents: a run that was cut short does not ask them again.
replies = Table(
    "replies",
    metadata,
    Column("task_id", Integer, nullable=False),
    Column("key", Text, nullable=False),
    Column("step_key", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("span_start", Integer),
    Column("span_end", Integer),
    Column("generation", JSON, nullable=False),
    PrimaryKeyConstraint("task_id", "key", "step_key"),
    sqlite_with_rowid=False,
)

# Of documents of which some tokens were found in a cache: those that were computed, in the result's seconds.
reading = Table(
    "reading",
    metadata,
    Column("task_id", Integer, nullable=False),
    Column("key", Text, nullable=False),
    Column("computed_tokens", Integer, nullable=False),
    PrimaryKeyConstraint("task_id", "key"),
    sqlite_with_rowid=False,
)

# What the model made of a document (float16), apart from the results so that those are read fast.
features = Table(
    "features",
    metadata,
    Column("task_id", Integer, nullable=False),
    Column("key", Text, nullable=False),
    Column("state", LargeBinary, nullable=False),
    PrimaryKeyConstraint("task_id", "key"),
)

# How the answers of a label task are seen: a calibration (JSON) and a threshold over scores that never
# change. Views are numbered in the order of their rows; one that was deleted keeps its row, without a
# calibration, so that its number is never another one's.
views = Table(
    "views",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("task_id", Integer, nullable=False, index=True),
    Column("created_at", Float, nullable=False),
    Column("calibration", Text, nullable=False),
    Column("threshold", Float),
    Column("facts", JSON, nullable=False),
)

# The view that exports show: its number, 0 for what the model said itself. ``held``: the end of a run shows
# no other. Without a row answers are shown as they were recorded.
shown_views = Table(
    "shown_views",
    metadata,
    Column("task_id", Integer, primary_key=True),
    Column("number", Integer, nullable=False),
    Column("held", Integer, nullable=False),
    Column("by", Text, nullable=False),
    Column("since", Float, nullable=False),
)

# True labels that people gave, whatever files they came in: a task's name, so that its versions share them,
# and the id of a document. ``label`` is a name, or a list of them; ``document_key`` that of the text which
# the id stood for then, ``file`` where the label was read, as far as these are known. ``chosen``: a review
# had picked the document.
gold = Table(
    "gold",
    metadata,
    Column("task", Text, nullable=False),
    Column("document_id", Text, nullable=False),
    Column("label", JSON, nullable=False),
    Column("document_key", Text),
    Column("file", Text),
    Column("chosen", Integer, nullable=False),
    Column("given_at", Float, nullable=False),
    PrimaryKeyConstraint("task", "document_id"),
    sqlite_with_rowid=False,
)


def connect(path: Path, *, write: bool) -> Engine:
    """An engine on the ledger file. Readers never wait for the writer, nor it for them; ``write=False``
    cannot change anything.
    """
    mode = "" if write else "?mode=ro"
    if not write and not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        # a backup, or another user's run: nobody writes, and no lock file can be made beside it
        mode += "&immutable=1"
    address = path.absolute().as_uri() + mode

    def open_file() -> sqlite3.Connection:
        return sqlite3.connect(address, uri=True, timeout=30, isolation_level=None, check_same_thread=False)

    # One connection a reader or writer under way: several readings may go on while a batch is committed, each
    # on its own snapshot.
    engine = create_engine("sqlite://", creator=open_file, poolclass=QueuePool, pool_size=2, max_overflow=-1)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        if write:
            connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA cache_size=-65536")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql(
            "BEGIN IMMEDIATE" if connection.get_execution_options().get("writing") else "BEGIN"
        )

    return engine


def use_write_ahead_log(engine: Engine) -> None:
    """Switch the file to WAL mode, in which readers see a snapshot while the writer goes on. The mode stays
    with the file.
    """
    with closing(engine.raw_connection()) as connection:
        try:
            connection.cursor().execute("PRAGMA journal_mode=WAL")
        except sqlite3.Error as error:  # past the engine, which would have dressed it like all others
            raise OperationalError("PRAGMA journal_mode=WAL", None, error) from error
