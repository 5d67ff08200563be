"""A ledger of an earlier version gains tables: all or nothing, with a copy of it as it was, over kills and
full disks. The ledger is a real one of version 0.1.0; most steps here are tests' own, after those of the
program.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline.errors import LedgerError, StoppedEarly
from pipeline.stores.ledger import upgrades
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.upgrades import Upgrade
from tests.recorded.old_runs import restore
from tests.small_disks import small_disk

_ROOT = Path(__file__).parents[3]
REGISTERED = list(upgrades.UPGRADES)
ENOUGH_BYTES = 2 * 200_000 + 2 * 2**20


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return restore(tmp_path) / "ledger.sqlite"


def add_notes(connection: sa.Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE notes (key TEXT PRIMARY KEY, blob BLOB)")
    connection.exec_driver_sql("INSERT INTO notes SELECT DISTINCT document_key, NULL FROM work")


def write_much(connection: sa.Connection) -> None:
    add_notes(connection)
    connection.exec_driver_sql("UPDATE notes SET blob = zeroblob(2000000)")


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def upgraded(monkeypatch: pytest.MonkeyPatch, path: Path, *steps: Upgrade) -> None:
    monkeypatch.setattr(upgrades, "UPGRADES", [*REGISTERED, *steps])
    Ledger.open(path, write=True).close()


def copy_of(path: Path, format_: int = 1) -> Path:
    return path.with_name(f"ledger.sqlite.format{format_}")


@pytest.fixture
def present(ledger: Path) -> Path:
    """The ledger, upgraded to the format of this version."""
    Ledger.open(ledger, write=True).close()
    copy_of(ledger).unlink()
    return ledger


def test_a_ledger_of_this_version_is_left_alone(present: Path) -> None:
    before = dump(present)
    Ledger.open(present, write=True).close()
    assert dump(present) == before
    assert not list(present.parent.glob("ledger.sqlite.format*"))


def test_tables_are_added_and_a_copy_is_kept(present: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, copy = dump(present), copy_of(present, len(REGISTERED) + 1)
    upgraded(monkeypatch, present, Upgrade(add_notes))
    after = dump(present)
    gone = [line for line in before if line not in after]
    assert gone == [f"INSERT INTO \"meta\" VALUES('format',{len(REGISTERED) + 1});"]
    assert sum(line.startswith('INSERT INTO "notes"') for line in after) == 8
    assert dump(copy) == before
    assert copy.stat().st_mode & 0o777 == 0o600
    copy.unlink()
    upgraded(monkeypatch, present, Upgrade(add_notes))  # once
    assert dump(present) == after
    assert not copy.exists()


def calibrate_by_hand(connection: sqlite3.Connection, labels: dict[str, Any]) -> None:
    """A view as a person made one by gold labels before labels were kept."""
    query = "SELECT id, document_key FROM inputs"
    keys = dict(connection.execute(query).fetchall())
    facts = {"by": "command", "gold_labels": {keys[name]: label for name, label in labels.items()}}
    calibration, when = connection.execute("SELECT calibration, created_at FROM views").fetchone()
    made = (when + 1, calibration.replace('"method": "none"', '"method": "gold"'), json.dumps(facts))
    connection.execute(
        "INSERT INTO views (task_id, created_at, calibration, facts) VALUES (1, ?, ?, ?)", made
    )


def as_format_2(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(upgrades, "UPGRADES", REGISTERED[:1])
        Ledger.open(path, write=True).close()
    with closing(sqlite3.connect(path)) as connection:
        for table in ("gold", "shown_views"):
            connection.execute(f"DROP TABLE {table}")
        connection.commit()


def what_it_says(path: Path) -> list[Any]:
    """What readers find in a ledger."""
    with Ledger.open(path, write=False) as opened:
        given = [opened.views("topic"), opened.shown_view("topic"), opened.kept_labels("topic")]
        rows = [list(opened.rows()), list(opened.scored("topic")), opened.documents("d1")]
        return [opened.status(), *rows, *given]


@pytest.mark.parametrize("format_", [1, 2])
def test_readers_see_an_older_ledger_as_the_next_run_will(
    ledger: Path, format_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(ledger)) as connection:  # its last reading had come to no end
        connection.execute("UPDATE inventories SET complete = 0")
        connection.execute("UPDATE inputs SET inventory_id = 1 WHERE id IN ('d6', 'd7')")
        of_1 = "SELECT document_key FROM inputs WHERE inventory_id = 1"
        connection.execute(f"UPDATE work SET inventory_id = 1 WHERE document_key IN ({of_1})")  # noqa: S608
        calibrate_by_hand(connection, {"d0": "sports", "d1": ["world", "sports"]})
        connection.commit()
    if format_ == 2:
        as_format_2(ledger, monkeypatch)
    before = dump(ledger)
    old = what_it_says(ledger)
    assert dump(ledger) == before
    Ledger.open(ledger, write=True).close()
    assert what_it_says(ledger) == old
    rows: Any = old[1]
    views, shown, given = old[-3:]
    assert [view.number for view in views] == [1, 2]
    assert (shown.number, shown.held, shown.by) == (2, True, "command")
    assert [(row.document_id, row.label, row.file) for row in given] == [
        ("d0", "sports", None),
        ("d1", ("world", "sports"), None),
    ]
    assert {row.input.id: row.input.unread for row in rows} == {
        f"d{number}": "left out" if number > 5 else None for number in range(8)
    }


def test_several_steps_in_their_order(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_more(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE more AS SELECT key FROM notes")

    upgraded(monkeypatch, ledger, Upgrade(add_notes), Upgrade(add_more))
    with closing(sqlite3.connect(ledger)) as connection:
        assert connection.execute("SELECT count(*) FROM more").fetchone() == (8,)
        (found,) = connection.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
    assert found == len(REGISTERED) + 3


def test_a_step_that_raises_changes_nothing(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: sa.Connection) -> None:
        add_notes(connection)
        raise LedgerError("no")

    before = dump(ledger)
    with pytest.raises(LedgerError, match="no"):
        upgraded(monkeypatch, ledger, Upgrade(fail))
    assert dump(ledger) == before


_KILLED = """
import os, signal, sys
from pathlib import Path
from pipeline.stores.ledger import upgrades
from pipeline.stores.ledger.ledger import Ledger
from tests.stores.ledger.test_upgrades import add_notes

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def step(connection):
    add_notes(connection)
    if sys.argv[2] == "in the step":
        die()

upgrades.UPGRADES.append(upgrades.Upgrade(step))
if sys.argv[2] == "in the copy":
    upgrades._sync = die
Ledger.open(Path(sys.argv[1]), write=True)
"""


@pytest.mark.parametrize("where", ["in the copy", "in the step"])
def test_a_kill_in_it_leaves_the_ledger_as_it_was(
    ledger: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dump(ledger)
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(ledger), where],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert copy_of(ledger).exists() == (where == "in the step")
    assert dump(ledger) == before
    upgraded(monkeypatch, ledger, Upgrade(add_notes))
    assert len(dump(ledger)) > len(before)
    assert dump(copy_of(ledger)) == before
    assert not list(ledger.parent.glob(".ledger*"))


@pytest.mark.parametrize(("leave", "step"), [(300_000, add_notes), (ENOUGH_BYTES, write_much)])
def test_a_full_disk_stops_it_and_room_lets_it_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: int, step: object
) -> None:
    with small_disk(tmp_path / "disk", "8M") as disk:
        ledger = restore(disk.place) / "ledger.sqlite"
        before = dump(ledger)
        disk.fill(leave)
        with pytest.raises(StoppedEarly, match="is full; free some space"):
            upgraded(monkeypatch, ledger, Upgrade(step))  # type: ignore[arg-type]
        assert not list(ledger.parent.glob(".ledger*"))
        assert dump(ledger) == before
        disk.enlarge("64M")
        upgraded(monkeypatch, ledger, Upgrade(step))  # type: ignore[arg-type]
        assert len(dump(ledger)) > len(before)


def test_readers_find_what_is_missing_empty(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("DROP TABLE views")
        connection.commit()
    before = dump(ledger)
    with Ledger.open(ledger, write=False) as opened:
        assert opened.views("topic") == []
        assert opened.status().documents == 8
        assert sum(1 for _ in opened.rows()) > 0
    assert dump(ledger) == before
    Ledger.open(ledger, write=True).close()  # some ledgers of format 1 were made before there were views
    with Ledger.open(ledger, write=False) as opened:
        assert opened.views("topic") == []
    assert dump(copy_of(ledger)) == before


def test_readers_say_what_cannot_be_read_as_it_is(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrades, "UPGRADES", [*REGISTERED, Upgrade(add_notes, readable=False)])
    with pytest.raises(LedgerError, match=r"of an earlier version \(format 1\).*overnight run"):
        Ledger.open(ledger, write=False)
    monkeypatch.setattr(upgrades, "UPGRADES", [*REGISTERED, Upgrade(add_notes)])
    with Ledger.open(ledger, write=False) as opened:
        assert opened.status().documents == 8
