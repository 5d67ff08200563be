"""The disk of the run directory fills in the middle: exit 75, a sentence, nothing recorded harmed; with more
room the night goes on.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.nights import ANight, documents, no_process_left
from tests.small_disks import SmallDisk, small_disk

ROWS = documents(60)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    night = ANight(tmp_path_factory.mktemp("undisturbed"), ROWS)
    assert night.run().returncode == 0
    return night.export()


def a_night(folder: Path, **run: object) -> ANight:
    floors = {"keep_free_disk": 0, **run}
    return ANight(
        folder,
        ROWS,
        script={"seconds": 0.03, "batch": 4},
        extra={"run": {"directory": str(folder / "disk" / "run"), **floors}},
    )


def directory_of(night: ANight) -> Path:
    return night.folder / "disk" / "run"


def results(night: ANight) -> int:
    ledger = directory_of(night) / "ledger.sqlite"
    if not ledger.exists():
        return 0
    with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM results").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def stopped(night: ANight, disk: SmallDisk, leave_bytes: int, words: str) -> int:
    """Fill the disk while the run works; the number of results that are recorded when it has stopped."""
    process = night.start("run", str(night.config), "--json")
    until = time.monotonic() + 60
    while results(night) < 8:
        assert time.monotonic() < until, "the run never began"
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    disk.fill(leave_bytes)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert words in json.loads(out)["reason"]
    assert "Traceback" not in err
    assert "Logging error" not in err
    assert no_process_left(night.folder)
    return results(night)


def check_readable(night: ANight, recorded: int) -> None:
    status = night.command("status", str(directory_of(night)), "--json")
    assert status.returncode == 0, status.stderr
    counts = json.loads(status.stdout)
    assert sum(states["done"] for states in counts["tasks"].values()) == recorded > 0
    assert not counts["complete"]
    assert all(sum(states.values()) == len(ROWS) for states in counts["tasks"].values())
    exported = night.folder / "partial.jsonl"
    assert night.command("export", str(directory_of(night)), "-o", str(exported)).returncode == 0
    assert len(exported.read_text().splitlines()) == len(ROWS)
    report = night.command("report", str(directory_of(night)))
    assert report.returncode == 0, report.stderr


def finish(night: ANight, undisturbed: list[dict[str, object]]) -> None:
    night.script = {}
    done = night.run()
    assert done.returncode == 0, done.stderr
    output = night.folder / "out.jsonl"
    assert night.command("export", str(directory_of(night)), "-o", str(output)).returncode == 0
    assert [json.loads(line) for line in output.read_text().splitlines()] == undisturbed


def test_a_disk_that_fills_stops_the_run_and_more_room_finishes_it(
    tmp_path: Path, undisturbed: list[dict[str, object]]
) -> None:
    night = a_night(tmp_path)
    with small_disk(tmp_path / "disk", "6m") as disk:
        recorded = stopped(night, disk, 0, "is full; free some space")
        check_readable(night, recorded)
        again = night.run()  # still no room: a sentence, and the same exit code
        assert again.returncode == 75, again.stderr
        assert "full" in again.stderr + again.stdout
        assert "Traceback" not in again.stderr
        check_readable(night, recorded)
        disk.enlarge("60m")
        finish(night, undisturbed)


def test_the_floor_stops_the_run_while_there_is_room_to_close_it(
    tmp_path: Path, undisturbed: list[dict[str, object]]
) -> None:
    night = a_night(tmp_path, keep_free_disk="3MiB")
    with small_disk(tmp_path / "disk", "12m") as disk:
        recorded = stopped(night, disk, 2 * 2**20, "less than run.keep_free_disk = 3 MiB")
        assert (directory_of(night) / "report.md").exists()
        check_readable(night, recorded)
        disk.enlarge("60m")
        finish(night, undisturbed)
