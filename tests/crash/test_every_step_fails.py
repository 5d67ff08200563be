"""Every change to the disk of a small run fails once: the run says so or goes on, and the next start ends
equal to the reference.
"""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.config import Config, load_config
from pipeline.errors import StoppedEarly
from pipeline.results.export import export
from pipeline.run.runner import run
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import LEDGER
from pipeline.testing.failing_disk import Change, FailingDisk, out_of_order
from tests.nights import ANight, documents, no_process_left

ROWS = [
    *documents(4, longest=3),
    {"id": "long", "text": " ".join(f"Sentence {number} of many." for number in range(40))},
]
ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO}
_SAMPLE = 6


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_SCRIPT", "{}")


def configured(folder: Path) -> Config:
    return load_config(ANight(folder, ROWS).config)


def night(config: Config) -> int:
    """A whole night in this process (its worker is one of its own), and its export; the exit code."""
    code = run(config).exit_code
    with Ledger.open(Path(config.run.directory) / LEDGER, write=False) as ledger:
        export(ledger, exported(config), force=False)
    return code


def endured(config: Config) -> int:
    """The same on a disk that fails: stopped before there was a run, or in the export, is stopped too."""
    try:
        return night(config)
    except StoppedEarly as stopped:
        return stopped.exit_code if "disk" in str(stopped) else -1


def exported(config: Config) -> Path:
    return Path(config.run.directory) / "out.jsonl"


def recorded(folder: Path) -> tuple[bytes, list[Change]]:
    """The export of a night that nothing happens to, and what it did to the disk."""
    config = configured(folder)
    disk = FailingDisk(Path(config.run.directory))
    with disk.installed():
        assert night(config) == 0
    return exported(config).read_bytes(), disk.changes


def check_one(folder: Path, fails_at: int, error: int, reference: bytes) -> str:
    """One failing night and the one after it; which change it was that failed."""
    config = configured(folder)
    disk = FailingDisk(Path(config.run.directory), fails_at, error)
    with disk.installed():
        code = endured(config)
    assert code in (0, 75)
    if (Path(config.run.directory) / "report.json").exists():
        # the old one or the new one, never part of it
        json.loads((Path(config.run.directory) / "report.json").read_text())
    assert night(config) == 0
    assert exported(config).read_bytes() == reference
    check_ledger(Path(config.run.directory))
    assert not list(Path(config.run.directory).glob(".*.part"))
    return (
        f"{disk.failed.action} {disk.failed.path.suffix or disk.failed.path.name}"
        if disk.failed
        else "nothing"
    )


def check_ledger(directory: Path) -> None:
    with closing(sqlite3.connect(directory / LEDGER)) as ledger:
        assert ledger.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        once = (
            "SELECT max(times), count(*) FROM (SELECT count(*) AS times FROM attempts WHERE outcome = "
            "'done' GROUP BY task_id, key)"
        )
        assert ledger.execute(once).fetchone() == (1, 2 * len(ROWS))


def test_a_sample_of_all_changes(tmp_path: Path) -> None:
    reference, changes = recorded(tmp_path / "reference")
    assert {change.action for change in changes} >= {"create", "write", "sync", "rename", "sync folder"}
    assert len([change for change in changes if change.path.name.startswith(LEDGER)]) > 40
    failed = []
    for number in range(_SAMPLE):
        fails_at = 1 + number * (len(changes) - 1) // (_SAMPLE - 1)
        failed.append(
            check_one(tmp_path / str(fails_at), fails_at, list(ERRORS.values())[number % 2], reference)
        )
    assert len(set(failed)) > 2
    assert no_process_left(tmp_path)


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("error", ERRORS)
def test_every_change(tmp_path: Path, error: str) -> None:
    reference, changes = recorded(tmp_path / "reference")
    failed = {
        check_one(tmp_path / str(number), number, ERRORS[error], reference)
        for number in range(1, len(changes) + 1)
    }
    assert {
        "write .sqlite-wal",
        "sync .sqlite-wal",
        "sync .part",
        "rename .part",
        "sync folder run",
    } <= failed


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_disk_that_stays_full_from_any_moment(tmp_path: Path) -> None:
    reference, changes = recorded(tmp_path / "reference")
    for number in range(1, len(changes) + 1, 7):
        config = configured(tmp_path / str(number))
        with FailingDisk(Path(config.run.directory), number, for_good=True).installed():
            assert endured(config) in (0, 75)
        assert night(config) == 0
        assert exported(config).read_bytes() == reference
        check_ledger(Path(config.run.directory))


def test_bytes_names_and_folders_reach_the_disk_in_order(tmp_path: Path) -> None:
    _, changes = recorded(tmp_path)
    renamed = [change.target.name for change in changes if change.target is not None]
    assert {"report.json", "report.md", "rejects.jsonl", "out.jsonl"} <= set(renamed)
    assert out_of_order(changes) == []
    commits = [change for change in changes if change.path.name == f"{LEDGER}-wal"]
    assert commits[-1].action == "sync"


def _written(path: Path) -> Change:
    return Change("write", path)


@pytest.mark.parametrize(
    ("leave_out", "words"),
    [("sync", "before its bytes were on the disk"), ("sync folder", "was not synced after it")],
)
def test_a_wrong_order_is_noticed(tmp_path: Path, leave_out: str, words: str) -> None:
    part, target = tmp_path / "part", tmp_path / "file"
    right = [
        Change("create", part),
        _written(part),
        Change("sync", part),
        Change("rename", part, target),
        Change("sync folder", tmp_path),
    ]
    assert out_of_order(right) == []
    wrong = out_of_order([change for change in right if change.action != leave_out])
    assert len(wrong) == 1
    assert words in wrong[0]


@pytest.mark.parametrize("error", ERRORS)
def test_the_disk_fails_where_it_is_told_to_and_nowhere_else(tmp_path: Path, error: str) -> None:
    def touch(path: Path) -> None:
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE IF NOT EXISTS t (x)")
            database.execute("INSERT INTO t VALUES (1)")
        database.close()

    def fails(disk: FailingDisk, action: Callable[[], None]) -> bool:
        with disk.installed():
            try:
                action()
            except sqlite3.OperationalError:
                return True
        return False

    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    assert fails(FailingDisk(inside, 3, ERRORS[error]), lambda: touch(inside / "a.sqlite"))
    assert not fails(FailingDisk(inside, 1, ERRORS[error]), lambda: touch(outside / "a.sqlite"))
    assert not fails(FailingDisk(inside), lambda: touch(inside / "a.sqlite"))
