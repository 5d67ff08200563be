"""Ledgers of format 2 become ones of format 3, which says which view is shown and keeps the labels that
people gave.

Before, the latest view was the one shown, one that a person had calibrated by gold labels stayed so, and
labels were only in the facts of the views that were made by them: by the keys of their documents, without
their ids, which are those of the rows that are still there.
"""

# ruff: noqa: S608  # statements are put together of constants of this module

from __future__ import annotations

import sqlalchemy as sa

_TABLES = (
    """
    CREATE TABLE IF NOT EXISTS views (
        id INTEGER NOT NULL PRIMARY KEY, task_id INTEGER NOT NULL, created_at FLOAT NOT NULL,
        calibration TEXT NOT NULL, threshold FLOAT, facts JSON NOT NULL
    )
    """,
    "CREATE INDEX IF NOT EXISTS ix_views_task_id ON views (task_id)",
    """
    CREATE TABLE shown_views (
        task_id INTEGER NOT NULL PRIMARY KEY, number INTEGER NOT NULL, held INTEGER NOT NULL,
        "by" TEXT NOT NULL, since FLOAT NOT NULL
    )
    """,
    """
    CREATE TABLE gold (
        task TEXT NOT NULL, document_id TEXT NOT NULL, label JSON NOT NULL, document_key TEXT, file TEXT,
        chosen INTEGER NOT NULL, given_at FLOAT NOT NULL, PRIMARY KEY (task, document_id)
    ) WITHOUT ROWID
    """,
)
_FACTS = "CASE WHEN json_valid(views.facts) THEN views.facts ELSE '{}' END"
_BY = f"coalesce(json_extract({_FACTS}, '$.by'), 'configuration')"
FILLED_OF_2 = (
    f"""
    INSERT INTO shown_views (task_id, number, held, "by", since)
    SELECT task_id, (SELECT count(*) FROM views AS mine WHERE mine.task_id = views.task_id),
        {_BY} = 'command' AND instr(calibration, '"method": "gold"') > 0, {_BY}, created_at
    FROM views WHERE id IN (SELECT max(id) FROM views GROUP BY task_id)
    """,
    f"""
    INSERT OR REPLACE INTO gold (task, document_id, label, document_key, file, chosen, given_at)
    SELECT tasks.name, inputs.id,
        CASE given.type WHEN 'text' THEN json_quote(given.value) ELSE given.value END,
        given.key, NULL, 0, views.created_at
    FROM views
    JOIN tasks ON tasks.id = views.task_id
    JOIN json_each({_FACTS}, '$.gold_labels') AS given
    JOIN main.inputs AS inputs ON inputs.document_key = given.key
    WHERE {_BY} = 'command'
    ORDER BY views.id
    """,
)
"""What the new tables hold, read off the old ones."""


def keep_what_people_gave(connection: sa.Connection) -> None:
    """See the module."""
    for statement in (*_TABLES, *FILLED_OF_2):
        connection.exec_driver_sql(statement)
