"""Ways to lose, double or mistake an answer that a review once demonstrated."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.nights import TASKS, ANight, documents, no_process_left

SUMMARY = [{**TASKS[1], "max_output_tokens": 40}]


def long(word: str) -> str:
    return " ".join(f"{word} sentence number {number} goes on and on." for number in range(60))


def by_id(night: ANight) -> dict[str, Any]:
    return {row["id"]: row for row in night.export()}


def test_late_replies_of_a_failed_document_are_nobody_elses(tmp_path: Path) -> None:
    """The worker dies once beside two long documents; one then fails with parts still being computed, the
    other is tried next.
    """
    rows = [{"id": "bad", "text": f"OOMPART KILLME {long('alpha')}"}, {"id": "good", "text": long("beta")}]
    fails = {"text": "OOMPART", "do": "oom"}
    kills = {"text": "KILLME", "do": "kill", "times": 1, "counter": str(tmp_path / "counter")}
    undisturbed = ANight(tmp_path / "a", rows, SUMMARY, {"faults": [fails]})
    assert undisturbed.run().returncode == 3
    night = ANight(tmp_path / "b", rows, SUMMARY, {"seconds": 0.15, "batch": 2, "faults": [kills, fails]})
    assert night.run().returncode == 3
    assert by_id(night)["good"] == by_id(undisturbed)["good"]


def test_a_repeated_row_far_away_is_not_asked_again(tmp_path: Path) -> None:
    rows = documents(600, longest=2)
    night = ANight(tmp_path, [*rows, rows[0], rows[299]], [TASKS[0]])
    assert night.run().returncode == 0
    with sqlite3.connect(night.directory / "ledger.sqlite") as ledger:
        works, attempts = ledger.execute(
            "SELECT (SELECT count(*) FROM work), (SELECT count(*) FROM attempts)"
        ).fetchone()
    ledger.close()
    assert works == attempts == len({(row["id"], row["text"]) for row in rows})
    assert len(night.export()) == 602


def test_a_field_that_no_document_has_is_told_before_the_night(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(5), [{**TASKS[1], "instructions": "About {{ titel }}?"}])
    done = night.run()
    assert done.returncode == 2
    assert "'titel'" in done.stderr


def test_a_document_that_lacks_a_field_fails_alone(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{**row, "title": "a title"} for row in documents(5)]
    del rows[2]["title"]
    night = ANight(tmp_path, rows, [{**TASKS[1], "instructions": "About {{ title }}?"}])
    assert night.run().returncode == 3
    found = [row["summary_error"] for row in night.export()]
    assert found[2].startswith("missing_field")
    assert [error for number, error in enumerate(found) if number != 2] == [None] * 4


def test_answers_behind_a_damaged_place_are_not_lost(tmp_path: Path) -> None:
    night = ANight(tmp_path, [], [TASKS[0]], extra={"source": {"path": str(tmp_path / "in.jsonl.gz")}})
    data = gzip.compress("".join(json.dumps(row) + "\n" for row in documents(300)).encode())
    (tmp_path / "in.jsonl.gz").write_bytes(data)
    assert night.run().returncode == 0
    before = night.export()
    (tmp_path / "in.jsonl.gz").write_bytes(data[: len(data) // 2])
    again = night.run()
    assert again.returncode == 3
    assert "could not be read to their end" in again.stderr + again.stdout or not night.status()["complete"]
    after = night.export()
    unread = [row.pop("not_read") for row in after]
    assert None in unread
    assert f"{tmp_path / 'in.jsonl.gz'} could not be read" in str(unread[-1])
    assert {row.pop("topic_calibration") for row in after} == {
        "view 2: self_training (not final)"
    }  # more documents may turn up
    assert {row.pop("topic_calibration") for row in before} == {"view 1: self_training"}
    assert after == before


def test_a_model_that_never_loads_ends_with_a_sentence(tmp_path: Path) -> None:
    for script, extra in (
        ({"load_fault": "exit"}, {}),
        ({"load_seconds": 1000}, {"engine": {"stall_seconds": 1}}),
    ):
        night = ANight(tmp_path / str(len(extra)), documents(3), script=script, extra=extra)
        done = night.run(timeout=60)
        assert done.returncode == 1
        assert "could not be loaded" in done.stderr
        assert "Traceback" not in done.stderr
        assert no_process_left(night.folder)


def test_the_worker_imports_nothing_from_the_folder_it_is_started_in(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('a file beside the documents was run')")
    night = ANight(tmp_path, documents(3))
    done = night.run(cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_export_from_another_folder_still_knows_the_inputs(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(3), extra={"source": {"path": "in.jsonl"}})
    before = night.source.read_bytes()
    assert night.run(cwd=tmp_path).returncode == 0
    done = night.command(
        "export", str(night.directory), "--output", str(night.source), "--force", cwd=Path("/")
    )
    assert done.returncode == 2
    assert night.source.read_bytes() == before


def test_what_a_refused_run_asked_for_is_not_kept_as_the_meaning_of_auto(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(3))
    assert night.run("--set", "model.dtype=bfloat16", "--kind", "nope").returncode == 2
    assert night.run().returncode == 0
    with sqlite3.connect(night.directory / "ledger.sqlite") as ledger:
        (kept,) = ledger.execute("SELECT value FROM meta WHERE name = 'resolved.dtype'").fetchone()
    ledger.close()
    assert json.loads(kept) == "float32"
