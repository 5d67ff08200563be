"""How a ledger of an earlier version becomes one of this: steps in their order, all in one transaction, after
a copy of the file has been laid beside it. A process killed anywhere in it leaves the ledger as it was.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from pipeline import __version__
from pipeline.errors import LedgerError, UsageError
from pipeline.stores.ledger.from_1_to_2 import VIEWS_OF_1, settle_readings
from pipeline.stores.ledger.from_2_to_3 import FILLED_OF_2, keep_what_people_gave
from pipeline.stores.ledger.schema import meta, metadata
from pipeline.system.atomic_write import disk_is_full

_log = logging.getLogger(__name__)

_ROOM_BYTES = 2**20  # beside the copy and what the steps write


@dataclass(frozen=True, slots=True)
class Upgrade:
    """One step, from the format before it to the next. ``apply`` adds or changes tables, and may fill them,
    in the transaction it is given; ledgers went through it, so it never changes: write its SQL out.

    ``readable``: a reader can do without it, tables that are missing being empty temporary ones to it.
    ``seen``: SQL by which it sees the rest as it will be: temporary views under the names of changed tables,
    rows of those that were missing.
    """

    apply: Callable[[sa.Connection], None]
    readable: bool = True
    seen: Sequence[str] = ()


UPGRADES: list[Upgrade] = [
    Upgrade(settle_readings, seen=VIEWS_OF_1),
    Upgrade(keep_what_people_gave, seen=FILLED_OF_2),
]
"""The first leads from format 1 to 2."""


def newest_format() -> int:
    """The format that this version writes."""
    return 1 + len(UPGRADES)


def recorded_format(engine: sa.Engine) -> object:
    """The format that the ledger says it has."""
    with engine.connect() as connection:
        return connection.execute(sa.select(meta.c.value).where(meta.c.name == "format")).scalar_one_or_none()


def check_format(path: Path, found: object, engine: sa.Engine | sa.Connection) -> int:
    """``found``, where this version knows it. Raises UsageError where it does not."""
    if not isinstance(found, int) or not 1 <= found <= newest_format():
        writer = _writer(engine)
        raise UsageError(
            f"{path} has format {found}, written by {writer}; this is overnight {__version__}, which reads "
            f"{_formats()}. Use {writer} or a later version for it, or another run.directory"
        )
    return found


def _formats() -> str:
    return "format 1" if newest_format() == 1 else f"formats 1 to {newest_format()}"


def _writer(ledger: sa.Engine | sa.Connection) -> str:
    """The version that last ran here, as far as a ledger whose tables may be other ones tells."""
    query = sa.text("SELECT facts FROM runs ORDER BY id DESC LIMIT 1")
    try:
        if isinstance(ledger, sa.Engine):
            with ledger.connect() as connection:
                facts = connection.execute(query).scalar_one_or_none()
        else:
            facts = ledger.execute(query).scalar_one_or_none()
        return f"overnight {json.loads(str(facts))['versions']['overnight']}"
    except (SQLAlchemyError, ValueError, LookupError, TypeError):
        return "a version of overnight that it does not name"


def missing_tables(ledger: sa.Engine | sa.Connection) -> list[sa.Table]:
    """Tables of this version that the file lacks."""
    there = set(sa.inspect(ledger).get_table_names())
    return [table for table in metadata.sorted_tables if table.name not in there]


def upgrade(connection: sa.Connection, path: Path) -> None:
    """Bring the ledger at ``path`` to the newest format inside ``connection``'s transaction, which keeps all
    other writers out. Raises StoppedEarly where the disk has no room for the copy.
    """
    recorded = connection.execute(sa.select(meta.c.value).where(meta.c.name == "format")).scalar_one()
    found = check_format(path, recorded, connection)
    if found == newest_format() and not missing_tables(connection):
        return  # another process was faster
    copy = _lay_copy(path, found)
    for step in UPGRADES[found - 1 :]:
        step.apply(connection)
    metadata.create_all(connection)  # tables that the first versions lacked under the same format
    connection.execute(meta.update().where(meta.c.name == "format").values(value=newest_format()))
    _log.info(
        "the ledger was upgraded from format %d to %d; as it was, it lies in %s", found, newest_format(), copy
    )


def stand_in(engine: sa.Engine, path: Path, found: int, missing: Sequence[sa.Table]) -> None:
    """Let readers of ``engine`` find ``missing`` tables empty, and changed ones as they would be: nothing is
    written to the file. Raises LedgerError where a step in between cannot be done without.
    """
    if not all(step.readable for step in UPGRADES[found - 1 :]):
        raise LedgerError(
            f"{path} is of an earlier version (format {found}) and cannot be read as it is; overnight run "
            f"with its configuration upgrades it, and keeps a copy"
        )
    statements = [
        str(CreateTable(table).compile(dialect=sqlite.dialect())).replace("CREATE", "CREATE TEMPORARY", 1)
        for table in missing
    ]
    statements += [statement for step in UPGRADES[found - 1 :] for statement in step.seen]

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: object) -> None:
        for statement in statements:
            connection.execute(statement)

    engine.dispose()  # connections that are open already have no such tables


def _lay_copy(path: Path, found: int) -> Path:
    """The ledger as it is, in a file of its own beside it; whole or not there."""
    copy, part = path.with_name(f"{path.name}.format{found}"), path.with_name(f".{path.name}.copy")
    needed = 2 * sum(_size(path.with_name(path.name + ending)) for ending in ("", "-wal")) + _ROOM_BYTES
    if shutil.disk_usage(path.parent).free < needed:
        raise disk_is_full(f"{path.parent}, where {needed:,} bytes are needed to upgrade the ledger,")
    part.unlink(missing_ok=True)  # of an upgrade that was killed
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        _copy(path, part)
        part.replace(copy)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync(path.parent)
    return copy


def _copy(path: Path, part: Path) -> None:
    try:
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as source,
            closing(sqlite3.connect(part)) as target,
        ):
            source.backup(target)
    except sqlite3.Error as error:  # past the engine, which would have dressed it like all others
        raise OperationalError("copy of the ledger", None, error) from error
    _sync(part)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
