"""What a ledger is worth after its writer was killed, or its disk was full."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import StoppedEarly
from pipeline.stores.ledger.ledger import Ledger
from tests.stores.ledger.ledgers import begun, document, documents, done

_ROWS = 3000
_WRITER = """
import sys
from pathlib import Path
from pipeline.stores.ledger.ledger import Ledger
from tests.stores.ledger.ledgers import documents, done, job, read

with Ledger.open(Path(sys.argv[1]), write=True) as ledger:
    ledger.accept_tasks([job()], fork=False)
    run = ledger.begin_run({})
    rows = documents(int(sys.argv[2]))
    read(ledger, run, rows)
    left = ledger.pending("topic", [row.key for row in rows])
    keys = list(left)
    for begin in range(0, len(keys), 8):
        works = [("topic", key) for key in keys[begin : begin + 8]]
        ledger.mark(run, works)
        ledger.finish(run, [done(task, key, key) for task, key in works])
        print(*(key for _, key in works), flush=True)
    ledger.end_run(run, 0, "done")
"""


def _killed(path: Path, after_seconds: float) -> tuple[set[str], bool]:
    """Keys that the writer has told of before it was killed, and whether it was done."""
    command = [sys.executable, "-c", _WRITER, str(path), str(_ROWS)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    ) as writer:
        assert writer.stdout is not None
        told = writer.stdout.readline()
        time.sleep(after_seconds)
        writer.send_signal(signal.SIGKILL)
        lines = [told, *writer.stdout]
    complete = [line for line in lines if line.endswith("\n")]
    return {key for line in complete for key in line.split()}, writer.returncode == 0


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.full)])
def test_what_was_told_done_is_done_after_a_kill_at_any_moment(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "ledger.sqlite"
    chance = random.Random(kills)
    told: set[str] = set()
    for _ in range(kills):
        keys, _ = _killed(path, chance.uniform(0, 0.4))
        assert not keys & told  # nothing is done twice
        told |= keys
        with Ledger.open(path, write=False) as ledger:
            states = ledger.status().tasks["topic"]
            finished = {row["key"]: row["value"] for row in ledger.results("topic")}
        assert sum(states.values()) == _ROWS
        assert told <= finished.keys()
        assert states["done"] == len(finished)
        assert len(finished) % 8 == 0
        assert all(value == key for key, value in finished.items())
        told = set(finished)  # a batch committed just before the kill was not told of
    assert told
    with Ledger.open(path, write=True) as ledger:
        ledger.begin_run({})
        assert ledger.status().tasks["topic"]["running"] == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if (
        mount is None
        or os.geteuid() != 0
        or subprocess.run(command, check=False, capture_output=True).returncode != 0
    ):
        pytest.skip("a small file system can only be mounted by root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def _fill(disk: Path) -> None:
    space = os.statvfs(disk)
    (disk / "filler").write_bytes(b"x" * (space.f_bavail * space.f_frsize))


def test_a_full_disk_stops_early_and_harms_nothing(small_disk: Path) -> None:
    path = small_disk / "ledger.sqlite"
    rows = documents(100)
    finished = 0
    with Ledger.open(path, write=True) as ledger:
        run = begun(ledger, rows)

        def fill() -> None:
            nonlocal finished
            for row in rows:
                ledger.finish(run, [done("topic", row.key, "long " * 20_000)])
                finished += 1

        with pytest.raises(StoppedEarly, match="the run directory is full"):
            fill()
        assert 0 < finished < len(rows)
        assert ledger.status().tasks["topic"]["done"] == finished
    with Ledger.open(path, write=False) as ledger:
        assert ledger.status().tasks["topic"]["done"] == finished
        assert sum(row["value"] == "long " * 20_000 for row in ledger.results("topic")) == finished


def test_no_room_for_a_ledger_at_all(small_disk: Path) -> None:
    _fill(small_disk)
    with pytest.raises(StoppedEarly, match="full"):
        Ledger.open(small_disk / "ledger.sqlite", write=True)


def test_freed_space_lets_it_go_on(small_disk: Path) -> None:
    path = small_disk / "ledger.sqlite"
    with Ledger.open(path, write=True) as ledger:
        run = begun(ledger, [document("a")])
        _fill(small_disk)
        with pytest.raises(StoppedEarly):
            ledger.finish(run, [done("topic", document("a").key, "x" * 100_000)])
        (small_disk / "filler").unlink()
        ledger.finish(run, [done("topic", document("a").key)])
        assert ledger.status().complete
