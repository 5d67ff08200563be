"""What may change between two runs of one run directory: inputs, speed, tasks. Finished work stays, changed
questions are refused.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.nights import TASKS, ANight, documents, no_process_left

ROWS = documents(14, longest=12)
LABEL, SUMMARY = TASKS
_LONG = (
    "Write down what happened in two sentences. Keep every number that {} names. Leave out all that "
    "is said about the weather."
)


def ask(night: ANight, query: str) -> list[tuple[Any, ...]]:
    """Rows of a query, as any SQLite tool would get them beside a running night."""
    address = (night.directory / "ledger.sqlite").as_uri() + "?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=30)) as ledger:
        return ledger.execute(query).fetchall()


def attempts(night: ANight) -> Counter[str]:
    """Attempts made so far, by task name and version."""
    query = (
        "SELECT name || '/' || version, count(*) FROM attempts JOIN tasks ON tasks.id = task_id GROUP BY 1"
    )
    return Counter(dict(ask(night, query)))


def finished(night: ANight, *arguments: str) -> Counter[str]:
    """Run to the end; returns the attempts that this run made."""
    before = attempts(night) if night.directory.exists() else Counter[str]()
    done = night.run(*arguments)
    assert done.returncode == 0, done.stderr
    return attempts(night) - before


def fresh(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> list[dict[str, Any]]:
    """Export of a night that never knew anything else."""
    night = ANight(folder, rows, **settings)
    finished(night)
    return night.export()


# ── tasks ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_changed_word_is_refused_shown_and_forked(tmp_path: Path) -> None:
    tasks = [LABEL, {**SUMMARY, "instructions": _LONG.format("the text")}]
    night = ANight(tmp_path / "night", ROWS, tasks=tasks)
    assert finished(night) == {"topic/1": 14, "summary/1": 14}
    answers, counts = night.export(), night.status()

    changed = "tasks.summary.instructions=" + _LONG.format("the report")
    refused = night.run("--set", changed)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "- Keep every number that the text names." in refused.stderr
    assert "+ Keep every number that the report names." in refused.stderr
    assert "weather" not in refused.stderr
    assert "task 'topic'" not in refused.stderr
    assert "--fork" in refused.stderr
    assert (night.export(), night.status()) == (answers, counts)
    assert finished(night) == {}

    assert finished(night, "--set", changed, "--fork") == {"summary/2": 14}
    forked = night.export()
    assert [row["topic"] for row in forked] == [row["topic"] for row in answers]
    assert all(new["summary"] != old["summary"] for new, old in zip(forked, answers, strict=True))
    tasks[1] = {**SUMMARY, "instructions": _LONG.format("the report")}
    assert forked == fresh(tmp_path / "fresh", ROWS, tasks=tasks)

    assert finished(night) == {}  # the first question again: its answers were kept
    assert night.export() == answers


def test_an_added_task_just_runs(tmp_path: Path) -> None:
    fixed: dict[str, Any] = {
        "generation": {"layout": "instructions_first"}
    }  # auto would mean another one for two tasks begun together
    first = ANight(tmp_path / "night", ROWS, tasks=[LABEL], extra=fixed)
    assert finished(first) == {"topic/1": 14}
    both = ANight(tmp_path / "night", ROWS, extra=fixed)
    assert finished(both) == {"summary/1": 14}
    together = ANight(tmp_path / "fresh", ROWS, extra=fixed)
    finished(together)
    assert both.export() == together.export()


def test_auto_layout_stays_what_it_was_when_a_task_is_added(tmp_path: Path) -> None:
    rows = [
        {**row, "text": f"{row['text']} " * 9} for row in ROWS
    ]  # two tasks begun together would have the document first
    alone = ANight(tmp_path / "night", rows, tasks=[LABEL])
    assert finished(alone) == {"topic/1": 14}
    both = ANight(tmp_path / "night", rows)
    assert finished(both) == {"summary/1": 14}  # the first one is not refused, nor done again
    assert planned_layout(both) == "instructions_first"
    together = ANight(tmp_path / "fresh", rows)
    finished(together)
    assert planned_layout(together) == "document_first"


def planned_layout(night: ANight) -> str:
    report = json.loads((night.directory / "report.json").read_text(encoding="utf-8"))
    return str(report["plan"]["layout"])


def test_speed_settings_change_nothing(tmp_path: Path) -> None:
    night = ANight(tmp_path / "night", ROWS)
    assert finished(night, "--limit", "5", "--set", "engine.batch_rows=1") == {"topic/1": 5, "summary/1": 5}
    settings = (
        "--set",
        "engine.batch_rows=7",
        "--set",
        "engine.threads=1",
        "--set",
        "engine.batch_tokens=9000",
        "--set",
        "engine.prefill_chunk_tokens=64",
        "--set",
        "engine.stall_seconds=99",
        "--set",
        "run.max_attempts=9",
    )
    assert finished(night, *settings) == {"topic/1": 9, "summary/1": 9}
    assert finished(night, "--set", "engine.batch_rows=3") == {}
    assert night.export() == fresh(tmp_path / "fresh", ROWS)


# ── inputs ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_changed_inputs_leave_finished_work_finished(tmp_path: Path) -> None:
    night = ANight(tmp_path / "night", ROWS)
    finished(night)
    edited = {**ROWS[3], "text": "Nothing is as it was before."}
    added = {"id": "new", "text": "A new one came in."}
    rows = [added, *reversed(ROWS[4:]), edited, *ROWS[:2], ROWS[0]]  # ROWS[2] removed, ROWS[0] repeated
    night.write_source(rows)
    assert finished(night) == {"topic/1": 2, "summary/1": 2}
    exported = night.export()
    assert [row["id"] for row in exported] == [row["id"] for row in rows]
    assert exported == fresh(tmp_path / "fresh", rows)
    counts = night.status()
    assert (counts["documents"], counts["duplicates"], counts["complete"]) == (14, 1, True)
    assert all(sum(states.values()) == states["done"] == 14 for states in counts["tasks"].values())

    night.write_source(ROWS)  # and back: the removed one and the text before the edit are known
    assert finished(night) == {}
    assert [row["id"] for row in night.export()] == [row["id"] for row in ROWS]


def test_a_taste_and_then_the_whole(tmp_path: Path) -> None:
    night = ANight(tmp_path / "night", ROWS)
    assert finished(night, "--limit", "4") == {"topic/1": 4, "summary/1": 4}
    assert night.status()["complete"] is False
    assert [row["id"] for row in night.export()] == [row["id"] for row in ROWS[:4]]
    assert finished(night) == {"topic/1": 10, "summary/1": 10}
    assert finished(night, "--limit", "2") == {}
    assert finished(night) == {}
    assert night.export() == fresh(tmp_path / "fresh", ROWS)


def test_a_field_that_the_template_reads_asks_its_document_again(tmp_path: Path) -> None:
    tasks = [{**LABEL, "instructions": "Which of them, seen from {{ place }}?"}, SUMMARY]
    rows = [{**row, "place": "Lund", "note": "x"} for row in ROWS]
    night = ANight(tmp_path / "night", rows, tasks=tasks)
    assert finished(night) == {"topic/1": 14, "summary/1": 14}
    before = night.export()
    rows[5] = {**rows[5], "place": "Aarhus"}
    rows[6] = {**rows[6], "note": "which no template reads"}
    night.write_source(rows)
    assert finished(night) == {"topic/1": 1}
    after = night.export()
    assert [row for number, row in enumerate(after) if number != 5] == [
        row for number, row in enumerate(before) if number != 5
    ]
    assert after[5]["topic_probabilities"] != before[5]["topic_probabilities"]
    assert after[5]["summary"] == before[5]["summary"]
    assert after == fresh(tmp_path / "fresh", rows, tasks=tasks)


# ── interruptions ───────────────────────────────────────────────────────────────────────────────────────────


def test_shards_killed_three_times_see_every_input_exactly_once(tmp_path: Path) -> None:
    rows = documents(48, longest=12)
    shards = tmp_path / "shards"
    shards.mkdir()
    for number in range(6):
        part = rows[number * 8 : (number + 1) * 8]
        if number % 2:
            (shards / f"part-{number}.json").write_text(json.dumps(part))
        else:
            (shards / f"part-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    single = tmp_path / "last.csv"
    single.write_text("id,text\nlast,The very last one.\n")
    extra = {"source": {"path": [str(shards), str(single)]}}
    night = ANight(tmp_path / "night", [], script={"seconds": 0.03, "batch": 4}, extra=extra)
    chance = random.Random(11)
    for _ in range(3):
        start = _results(night)
        process = night.start("run", str(night.config))
        enough = start + chance.randint(3, 20)
        _wait_until(night, enough)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
    night.script = {}
    finished(night)

    exported = night.export()
    assert [row["id"] for row in exported] == [*(row["id"] for row in rows), "last"]
    assert all(row["topic_status"] == row["summary_status"] == "done" for row in exported)
    ends = ask(night, "SELECT task_id, key, count(*) FROM attempts WHERE outcome = 'done' GROUP BY 1, 2")
    assert len(ends) == 2 * 49
    assert {count for _, _, count in ends} == {1}
    assert exported == fresh(tmp_path / "fresh", [*rows, {"id": "last", "text": "The very last one."}])
    assert no_process_left(tmp_path)


def test_partial_results_can_be_read_while_it_runs(tmp_path: Path) -> None:
    night = ANight(tmp_path, ROWS, script={"seconds": 0.25, "batch": 2})
    process = night.start("run", str(night.config))
    try:
        _wait_until(night, 3)
        rows, counts = night.export(), night.status()
        shown = night.command("report", str(night.directory))
        running = process.poll() is None
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert running, "the night was over before it was looked at: the test shows nothing"
    assert process.returncode == 0, err
    assert "All done" in out

    states = Counter(row[f"{task}_status"] for row in rows for task in ("topic", "summary"))
    assert states["done"] >= 3
    assert states["pending"] + states["running"] > 0
    assert counts["complete"] is False
    assert shown.returncode == 0
    assert "going on" in shown.stdout
    after = {row["id"]: row for row in night.export()}
    for row in rows:
        for task in ("topic", "summary"):
            assert (row[task] is not None) == (row[f"{task}_status"] == "done")
            assert row[task] in (None, after[row["id"]][task])


def _results(night: ANight) -> int:
    try:
        return int(ask(night, "SELECT count(*) FROM results")[0][0])
    except sqlite3.OperationalError:  # not there yet
        return 0


def _wait_until(night: ANight, results: int, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while _results(night) < results:
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
