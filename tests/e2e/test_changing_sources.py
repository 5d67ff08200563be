"""Sources that change between runs and under them, damaged ones and empty ones, as people in the field have
met with them: what is gone is decided by file, what comes anew is said, nothing read is no success.
"""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import EXIT_DONE, EXIT_SOME_FAILED, EXIT_STOPPED
from pipeline.records import Progress
from pipeline.run.in_process_worker import in_process_workers
from pipeline.run.runner import RunResult, run
from tests.e2e.edited_sources import Nights, configured
from tests.nights import TASKS, ANight, documents
from tests.tiers import quick


def a_folder(place: Path, texts: dict[str, str]) -> Path:
    place.mkdir()
    for name, text in texts.items():
        (place / name).write_text(text)
    return place


def over_folder(tmp_path: Path, docs: Path, **script: Any) -> ANight:
    return ANight(tmp_path / "night", [], [TASKS[0]], script, {"source": {"path": str(docs)}})


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def ids(path: Path) -> list[str]:
    return [row["id"] for row in lines_of(path)]


# ── what the field tries showed ─────────────────────────────────────────────────────────────────────────────


def test_one_unreadable_file_leaves_no_doubt_about_the_others(tmp_path: Path) -> None:
    docs = a_folder(tmp_path / "docs", {name: f"The text of {name}." for name in ("a.txt", "b.txt", "c.txt")})
    (docs / "bad.txt").write_bytes(b"caf\xe9")
    night, out = over_folder(tmp_path, docs), tmp_path / "out.jsonl"
    assert night.run("--output", str(out)).returncode == EXIT_SOME_FAILED
    before = {row["id"]: row for row in lines_of(out)}
    (docs / "a.txt").write_text("The team lost after all.")
    (docs / "c.txt").unlink()
    done = night.run("--output", str(out))
    assert done.returncode == EXIT_SOME_FAILED
    assert "Finished; 1 file could not be read" in done.stdout
    after = {row["id"]: row for row in lines_of(out)}
    assert list(after) == ids(out) == ["a.txt", "b.txt"]
    assert after["b.txt"] == before["b.txt"]
    assert after["a.txt"]["topic_probabilities"] != before["a.txt"]["topic_probabilities"]
    report = (night.directory / "report.md").read_text(encoding="utf-8")
    assert "1 file could not be read" in report
    assert "again" not in report
    assert night.status()["documents"] == 2


def test_files_replaced_removed_and_damaged_while_the_run_works(tmp_path: Path) -> None:
    texts = {f"{number:03}.txt": f"Document {number} about a match." for number in range(300)}
    docs, out = a_folder(tmp_path / "docs", texts), tmp_path / "out.jsonl"
    night = over_folder(tmp_path, docs, seconds=0.005, batch=4)
    process = night.start("run", str(night.config), "--output", str(out))
    log, until = night.directory / "ledger.sqlite-wal", time.monotonic() + 60
    while night.loads() == 0:
        assert process.poll() is None, "the night was over before anything was changed"
        assert time.monotonic() < until, log
        time.sleep(0.02)
    (docs / "290.txt").write_text("REPLACED")
    (docs / "295.txt").unlink()
    (docs / "297.txt").write_bytes(b"caf\xe9")
    told, said = process.communicate(timeout=120)
    assert process.returncode == EXIT_STOPPED, said
    assert "the source changed while the run worked; for the next one: 1 new document" in told
    first = {row["id"]: row["topic_status"] for row in lines_of(out)}
    assert first == {name: "done" for name in texts if name not in ("295.txt", "297.txt")} | {
        "290.txt": "pending"
    }
    again = night.run("--output", str(out))
    assert again.returncode == EXIT_SOME_FAILED, again.stderr
    assert "1 file could not be read" in again.stdout
    assert "pending" not in again.stdout
    assert [(row["id"], row["topic_status"]) for row in lines_of(out)] == [
        (name, "done") for name in sorted(texts) if name not in ("295.txt", "297.txt")
    ]
    assert "297.txt" in (night.directory / "rejects.jsonl").read_text(encoding="utf-8")


def a_parquet_file(path: Path, rows: int) -> None:
    columns = {name: [f"{name} {number}" for number in range(rows)] for name in ("id", "text")}
    pq.write_table(pa.table(columns, pa.schema([("id", pa.string()), ("text", pa.string())])), path)


EMPTY: dict[str, tuple[str, Callable[[Path], None], Callable[[Path], None]]] = {
    "lines": ("in.jsonl", lambda path: write_lines(path, 3), lambda path: path.write_text("") and None),
    "table": ("in.csv", lambda path: write_csv(path, 3), lambda path: write_csv(path, 0)),
    "parquet": ("in.parquet", lambda path: a_parquet_file(path, 3), lambda path: a_parquet_file(path, 0)),
    "blank texts": (
        "in.csv",
        lambda path: write_csv(path, 3),
        lambda path: path.write_text("id,text\n1, \n2,\n") and None,
    ),
    "rejects": (
        "in.jsonl",
        lambda path: write_lines(path, 3),
        lambda path: path.write_text('{"id": 1}\n') and None,
    ),
    "folder": (
        "docs",
        lambda path: write_lines(path / "a.jsonl", 3),
        lambda path: (path / "a.jsonl").unlink(),
    ),
    "empty file in a folder": (
        "docs",
        lambda path: write_lines(path / "a.jsonl", 3),
        lambda path: (path / "a.jsonl").write_text("") and None,
    ),
    "pattern": (
        "*.jsonl",
        lambda path: write_lines(path.with_name("a.jsonl"), 3),
        lambda path: path.with_name("a.jsonl").unlink(),
    ),
}


def write_lines(path: Path, rows: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in documents(rows)))


def write_csv(path: Path, rows: int) -> None:
    path.write_text("id,text\n" + "".join(f"{number},text {number}\n" for number in range(rows)))


@pytest.mark.parametrize("kind", EMPTY)
def test_nothing_read_is_no_success_and_replaces_nothing(tmp_path: Path, kind: str) -> None:
    name, fill, empty = EMPTY[kind]
    source = tmp_path / "in" / name
    source.parent.mkdir()
    fill(source)
    nights = Nights(source, tmp_path / "night")
    before = nights.run()
    assert before.code == EXIT_DONE
    assert len(before.rows) == 3
    empty(source)
    after = nights.run()  # says no word of running again, see there
    assert after.code == 2
    assert (after.exported, after.known) == (before.exported, before.known)
    fill(source)
    assert nights.run().exported == before.exported
    assert set(nights.answers_given()) == {1}


def test_the_command_says_that_nothing_was_read(tmp_path: Path) -> None:
    night, out = ANight(tmp_path, documents(3), [TASKS[0]]), tmp_path / "out.jsonl"
    assert night.run("-q", "--output", str(out)).returncode == EXIT_DONE
    before = out.read_bytes()
    night.write_source([])
    done = night.run("-q", "--output", str(out))
    assert done.returncode == 2
    assert done.stderr.startswith(f"overnight: nothing was read from {night.source}: it holds no document")
    assert out.read_bytes() == before
    report = (night.directory / "report.md").read_text(encoding="utf-8")
    assert "3 done" in report
    assert "nothing was read from" in report
    assert "again" not in report


# ── what cannot be read, or was left out ────────────────────────────────────────────────────────────────────


def test_rows_behind_a_break_keep_their_last_answers_and_are_marked(tmp_path: Path) -> None:
    rows = documents(200, longest=2)
    source = tmp_path / "in.jsonl.gz"

    def write(rows: list[dict[str, Any]], share: float = 1) -> None:
        data = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
        source.write_bytes(data[: int(len(data) * share)])

    write(rows)
    nights = Nights(source, tmp_path / "night")
    whole = nights.run()
    edited = [{**rows[0], "text": "Nothing is as it was."}, {"id": "new", "text": "A new one."}, *rows[2:]]
    write(edited, 0.5)  # one edited, one removed, one added; and then the file breaks
    broken = nights.run()
    assert broken.code == EXIT_SOME_FAILED
    assert [row["id"] for row in broken.rows] == [row["id"] for row in edited]
    marked = [row for row in broken.rows if row["not_read"]]
    assert 20 < len(marked) < 180
    assert marked == broken.rows[-len(marked) :]
    assert all("in.jsonl.gz could not be read" in row["not_read"] for row in marked)
    of_before = {row["id"]: row for row in whole.rows}
    assert all(row | {"not_read": None} == of_before[row["id"]] | {"not_read": None} for row in marked)
    assert nights.run().rows == broken.rows  # and so it stays
    write(edited)
    assert "not_read" not in nights.run().rows[0]
    assert set(nights.answers_given()) == {1}


def test_a_damaged_row_group_is_in_doubt_and_the_others_are_not(tmp_path: Path) -> None:
    names = [f"{number:06}" for number in range(300)]
    texts = [f"{number * 7919 % 100003:06}" for number in range(300)]
    source = tmp_path / "in.parquet"

    def write() -> None:
        plain = {"use_dictionary": False, "compression": "none", "write_page_checksum": False}
        pq.write_table(pa.table({"id": names, "text": texts}), source, row_group_size=100, **plain)

    write()
    nights = Nights(source, tmp_path / "night")
    nights.run()
    texts[250] = "edited"
    write()
    column = pq.ParquetFile(source).metadata.row_group(1).column(1)
    data = bytearray(source.read_bytes())
    data[column.data_page_offset : column.data_page_offset + 200] = b"\xff" * 200
    source.write_bytes(data)
    broken = nights.run()
    assert broken.code == EXIT_SOME_FAILED
    assert [row["id"] for row in broken.rows] == names
    assert [bool(row["not_read"]) for row in broken.rows] == [100 <= number < 200 for number in range(300)]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (["d0", "D1", "d2", "d3", "d4"], ["d0", "D1", "d2", "d3"]),  # one edited
        (["d0", "d2", "d3", "d4", "d5"], ["d0", "d2", "d3", "d4"]),  # one removed
        (["d0", "d1", "d2", "d4", "d5"], ["d0", "d1", "d2", "d4"]),  # the last of them
        (["new", "d0", "d1", "d2", "d4"], ["new", "d0", "d1", "d2"]),  # one added
    ],
)
def test_edits_between_two_limited_runs(tmp_path: Path, after: list[str], expected: list[str]) -> None:
    """A name in capitals is the same document with another text."""
    source = tmp_path / "in.jsonl"

    def write(names: list[str]) -> None:
        source.write_text("".join(f'{{"id": "{name.lower()}", "text": "About {name}."}}\n' for name in names))

    write(["d0", "d1", "d2", "d3", "d4"])
    nights = Nights(source, tmp_path / "night")
    nights.run(limit=4)
    write(after)
    assert [row["id"] for row in nights.run(limit=4).rows] == [name.lower() for name in expected]


def test_a_limited_run_is_judged_by_its_own_documents(tmp_path: Path) -> None:
    rows = [*documents(4, longest=2), {"id": "odd", "text": "An ODD one."}]
    night = ANight(tmp_path, rows, [TASKS[0]], {"faults": [{"text": "ODD", "do": "raise"}]})
    assert night.run().returncode == EXIT_SOME_FAILED
    done = night.run("--limit", "4")
    assert done.returncode == EXIT_DONE
    assert "1 failed" in done.stdout  # the ledger's counts
    assert "left out (--limit)" in done.stdout
    report = (night.directory / "report.md").read_text(encoding="utf-8")
    assert "one without a limit reads the rest" in report
    assert "run the same command again" not in report
    rows[4]["text"] = "An even one."
    night.write_source(rows)
    assert night.run().returncode == EXIT_DONE


# ── under the run ───────────────────────────────────────────────────────────────────────────────────────────


def changed_while_it_works(
    tmp_path: Path, change: Callable[[Path], None], words: str = ""
) -> tuple[RunResult, Path]:
    """A run over 300 files that are changed when it says ``words``, without them when the model is there: the
    folder has been listed again then, and the last 44 files are yet to be read again.
    """
    texts = {f"{number:03}.txt": f"Document {number}." for number in range(300)}
    docs = a_folder(tmp_path / "docs", texts)
    left = [lambda: change(docs)]

    def observe(report: Progress) -> None:
        if left and (words in report.message if words else report.stage == "working"):
            left.pop()()

    (tmp_path / "night").mkdir()
    config = configured(docs, tmp_path / "night")
    return run(config, observer=observe, workers=in_process_workers), docs


def damage(path: Path) -> None:
    path.write_bytes(b"caf\xe9")


CHANGES: dict[str, tuple[Callable[[Path], Any], int, int, str]] = {
    "removed": (lambda docs: (docs / "299.txt").unlink(), EXIT_DONE, 299, "done"),
    "damaged": (lambda docs: damage(docs / "299.txt"), EXIT_SOME_FAILED, 299, "1 file could not be read"),
    "added": (lambda docs: (docs / "300.txt").write_text("New."), EXIT_STOPPED, 301, "1 new document"),
    "added after the listing": (lambda docs: (docs / "300.txt").write_text("New."), EXIT_DONE, 300, "done"),
    "replaced": (lambda docs: (docs / "299.txt").write_text("Other."), EXIT_STOPPED, 300, "1 new document"),
    "replaced beside a damaged one": (
        lambda docs: (damage(docs / "299.txt"), (docs / "298.txt").write_text("Other.")),
        EXIT_STOPPED,
        299,
        "1 new document",
    ),
    "all gone": (shutil.rmtree, EXIT_STOPPED, 300, "cannot be read any more"),
    "all empty": (
        lambda docs: [path.write_text("") for path in docs.iterdir()],
        EXIT_STOPPED,
        300,
        "cannot be read any more",
    ),
}


@pytest.mark.parametrize(
    "kind", quick(CHANGES, "removed", "damaged", "added", "replaced beside a damaged one", "all gone")
)
def test_a_source_that_changes_under_the_run(tmp_path: Path, kind: str) -> None:
    change, code, documents_left, words = CHANGES[kind]
    result, docs = changed_while_it_works(tmp_path, change, "300 documents read" if kind == "added" else "")
    assert (result.exit_code, result.status.documents) == (code, documents_left)
    assert words in result.reason
    for states in result.status.tasks.values():
        assert sum(states.values()) == documents_left
        assert (states["pending"] > 0) == (code == EXIT_STOPPED)
    if docs.exists() and kind != "all empty":
        nights = Nights(docs, tmp_path / "night")
        assert nights.run().code == (EXIT_SOME_FAILED if "damaged" in kind else EXIT_DONE)
        assert set(nights.answers_given()) == {1}
