"""Large collections: time in proportion, memory flat."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ROWS = 100_000
_READ = """
import itertools, resource, sys, time
from pathlib import Path
from pipeline.stores.ledger import Ledger
from tests.stores.ledgers import document, job

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

with Ledger.open(Path(sys.argv[1]), write=True) as ledger:
    ledger.accept_tasks([job()], fork=False)
    run = ledger.begin_run({})
    rows = (document(f"d{number}", line=number + 1) for number in range(int(sys.argv[2])))
    before, started = peak_bytes(), time.process_time()
    inventory = ledger.start_inventory(run)
    while block := list(itertools.islice(rows, 256)):
        inventory.see(block)
    inventory.finish(complete=True)
    read_seconds = time.process_time() - started
    counted = sum(1 for _ in ledger.rows())
    print(ledger.status().documents, counted, peak_bytes() - before, read_seconds)
"""


def _read(path: Path, rows: int) -> tuple[int, int, int, float]:
    """(documents, exported rows, growth of the process in bytes, processor seconds of reading)."""
    command = [sys.executable, "-c", _READ, str(path), str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    documents, counted, grown, reading = done.stdout.split()
    return int(documents), int(counted), int(grown), float(reading)


@pytest.mark.full
def test_a_hundred_thousand_rows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    first, again = _read(path, _ROWS), _read(path, _ROWS)
    assert first[:2] == again[:2] == (_ROWS, _ROWS)
    assert max(first[2], again[2]) < 150e6  # of it 64 MiB are the page cache of each connection
    assert max(first[3], again[3]) < 6  # a million rows in a minute; 2.3 were measured on two busy cores
