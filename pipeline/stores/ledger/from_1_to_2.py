"""Ledgers of format 1 become ones of format 2, in which a reading of the source counts once it is settled.

Before, a row lay in the table once, whatever the number of readings, and stayed present until a complete
reading did not see it. So all that was present is what the latest reading has, or keeps because it left it
out: which files it could not read was not written down.
"""

# ruff: noqa: S608  # statements are put together of constants of this module

from __future__ import annotations

import sqlalchemy as sa

_FIRST_PRESENT = "(SELECT coalesce(max(id), 0) FROM main.inventories WHERE complete = 1)"
_LATEST = "(SELECT max(id) FROM main.inventories)"
_ROWS_OF_1 = f"""
    SELECT row_number() OVER (ORDER BY ordinal, inventory_id DESC) AS number, document_key, occurrence, id,
        row_number() OVER (ORDER BY ordinal, inventory_id DESC) - 1 AS ordinal, file, line, "offset", fields,
        characters, {_LATEST} AS inventory_id,
        CASE WHEN inventory_id < {_LATEST} THEN 'left out' END AS unread
    FROM main.{{table}} WHERE inventory_id >= {_FIRST_PRESENT}
"""
_KEPT_OF_1 = f"CASE WHEN inventory_id >= {_FIRST_PRESENT} AND inventory_id < {_LATEST} THEN {_LATEST} END"
_FROM_1_TO_2 = (
    "ALTER TABLE inventories ADD COLUMN settled INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE inventories ADD COLUMN limited INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE inventories ADD COLUMN damaged INTEGER NOT NULL DEFAULT 0",
    f"UPDATE inventories SET settled = 1, limited = 1 - complete WHERE id = {_LATEST}",
    "DROP INDEX inputs_by_id",
    "DROP INDEX inputs_in_order",
    "ALTER TABLE inputs RENAME TO inputs_of_1",
    """
    CREATE TABLE inputs (
        number INTEGER NOT NULL PRIMARY KEY, document_key TEXT NOT NULL, occurrence INTEGER NOT NULL,
        id TEXT NOT NULL, ordinal INTEGER NOT NULL, file TEXT NOT NULL, line INTEGER NOT NULL,
        "offset" INTEGER, fields JSON, characters INTEGER NOT NULL, inventory_id INTEGER NOT NULL, unread TEXT
    )
    """,
    f"INSERT INTO inputs {_ROWS_OF_1.format(table='inputs_of_1')}",
    "DROP TABLE inputs_of_1",
    "CREATE INDEX inputs_by_document ON inputs (document_key)",
    "CREATE INDEX inputs_by_id ON inputs (id)",
    "CREATE INDEX inputs_in_order ON inputs (inventory_id, ordinal)",
    "ALTER TABLE work ADD COLUMN kept_id INTEGER",
    f"UPDATE work SET kept_id = {_KEPT_OF_1}",
)
VIEWS_OF_1 = (
    f"""
    CREATE TEMPORARY VIEW inventories AS
    SELECT *, id = {_LATEST} AS settled, 1 - complete AS limited, 0 AS damaged FROM main.inventories
    """,
    f"CREATE TEMPORARY VIEW inputs AS {_ROWS_OF_1.format(table='inputs')}",
    f"CREATE TEMPORARY VIEW work AS SELECT *, {_KEPT_OF_1} AS kept_id FROM main.work",
)


def settle_readings(connection: sa.Connection) -> None:
    """See the module."""
    for statement in _FROM_1_TO_2:
        connection.exec_driver_sql(statement)
