"""Large collections: time in proportion, memory flat."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.records import Reject
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.unread import Stop
from tests.stores.ledger.ledgers import begun, documents, done

_ROWS = 100_000
_READ = """
import itertools, resource, sys, time
from pathlib import Path
from pipeline.stores.ledger.ledger import Ledger
from tests.stores.ledger.ledgers import document, job

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

with Ledger.open(Path(sys.argv[1]), write=True) as ledger:
    ledger.accept_tasks([job()], fork=False)
    run = ledger.begin_run({})
    rows = (document(f"d{number}", line=number + 1) for number in range(int(sys.argv[2])))
    before, started = peak_bytes(), time.process_time()
    inventory = ledger.start_inventory(run)
    while block := list(itertools.islice(rows, 256)):
        inventory.enter(block)
    inventory.finish()
    read_seconds = time.process_time() - started
    counted = sum(1 for _ in ledger.rows())
    print(ledger.status().documents, counted, peak_bytes() - before, read_seconds)
"""

_READ_AGAIN = """
import resource, sys
from pathlib import Path
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.unread import Stop
from tests.stores.ledger.ledgers import document, job

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

with Ledger.open(Path(sys.argv[1]), write=True) as ledger:
    ledger.accept_tasks([job()], fork=False)
    inventory = ledger.start_inventory(ledger.begin_run({}))
    inventory.enter([document(f"d{number}", line=number + 1) for number in range(10)])
    before = peak_bytes()
    inventory.finish(Stop(document("d10", line=11)))
    print(ledger.status().left_out_rows, peak_bytes() - before)
"""


def _read(path: Path, rows: int) -> tuple[int, int, int, float]:
    """(documents, exported rows, growth of the process in bytes, processor seconds of reading)."""
    command = [sys.executable, "-c", _READ, str(path), str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    documents, counted, grown, reading = done.stdout.split()
    return int(documents), int(counted), int(grown), float(reading)


def _instructions(path: Path, works: int) -> dict[str, int]:
    """Thousands of SQLite's instructions that it takes to look at, begin and finish 300 of so many works."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    spent = {}
    with Ledger.open(path, write=True) as ledger:
        rows = documents(works)
        run = begun(ledger, rows)
        with closing(ledger._engine.raw_connection()) as connection:
            # a connection of sqlite3
            connection.driver_connection.set_progress_handler(count, 1000)  # type: ignore[union-attr]
        keys = [row.key for row in rows[-300:]]
        steps = {
            "pending": lambda: ledger.pending("topic", keys),
            "mark": lambda: ledger.mark(run, [("topic", key) for key in keys]),
            "finish": lambda: ledger.finish(run, [done("topic", key) for key in keys]),
        }
        for name, step in steps.items():
            counted = 0
            step()
            spent[name] = counted
    return spent


def test_the_cost_of_a_group_does_not_grow_with_the_collection(tmp_path: Path) -> None:
    few, many = _instructions(tmp_path / "few", 1_000), _instructions(tmp_path / "many", 16_000)
    assert all(few.values())
    assert all(many[name] <= 1.5 * few[name] for name in few), (few, many)


def _closing(path: Path, rows: int, *, breaks: bool) -> int:
    """Thousands of SQLite's instructions that a reading takes which has seen half of so many rows: up to a
    place where the file breaks, or where it was to stop.
    """
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    with Ledger.open(path, write=True) as ledger:
        everything = documents(rows)
        run = begun(ledger, everything)
        ledger.finish(run, [done("topic", row.key) for row in everything])
        with closing(ledger._engine.raw_connection()) as connection:
            # a connection of sqlite3
            connection.driver_connection.set_progress_handler(count, 1000)  # type: ignore[union-attr]
        inventory = ledger.start_inventory(ledger.begin_run({}))
        half = everything[: rows // 2]
        inventory.enter([*half, Reject(half[-1].origin, "cut", ends_file=True)] if breaks else half)
        inventory.finish(None if breaks else Stop(everything[rows // 2]))
        status = ledger.status()
        assert (status.unreadable_rows if breaks else status.left_out_rows) == rows - rows // 2
    return counted


@pytest.mark.parametrize("breaks", [True, False])
def test_the_cost_of_rows_that_stay_unseen_grows_as_they_do(tmp_path: Path, breaks: bool) -> None:
    few, many = (_closing(tmp_path / str(rows), rows, breaks=breaks) for rows in (1_000, 4_000))
    assert many < 6 * few, (few, many)


@pytest.mark.full
def test_a_hundred_thousand_rows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    first, again = _read(path, _ROWS), _read(path, _ROWS)
    assert first[:2] == again[:2] == (_ROWS, _ROWS)
    assert max(first[2], again[2]) < 150e6  # of it 64 MiB are the page cache of each connection
    assert max(first[3], again[3]) < 6  # a million rows in a minute; 2.3 were measured on two busy cores


@pytest.mark.full
def test_a_limited_reading_holds_no_row_that_it_keeps(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    _read(path, _ROWS)
    command = [sys.executable, "-c", _READ_AGAIN, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    left_out, grown = map(int, done.stdout.split())
    assert left_out == _ROWS - 10
    assert grown < 80e6  # the page cache of 64 MiB among it
