"""Every file of the messy corpus through the whole command: nothing is lost between its rows, the export and
the rejects.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.records import is_blank
from tests.nights import ANight, documents, no_process_left
from tests.sources.reading import read
from tests.sources.test_corpora import FILES, MESSY

pytestmark = pytest.mark.skipif(not MESSY.is_dir(), reason="there is no shared/corpora beside this checkout")

QUICK = {
    "text/blns_derived.jsonl",
    "control_tokens/qwen_tokenization_note_ja.md",
    "json/unterminated_quote.ndjson",
    "json/empty.ndjson",
    "json/amazon_cellphones.ndjson",
    "csv/emoji_tweet_multiline.csv",
    "parquet/papers_nested.parquet",
}


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def is_readable(path: Path, **settings: Any) -> bool:
    """Whether it has a document with a text that is not blank."""
    rows, _ = read(path, **settings)
    return not all(is_blank(row.text) for row in rows)


def breaks_off(path: Path, **settings: Any) -> bool:
    """Whether some file cannot be read to its end; then the run cannot say that it knows all inputs."""
    _, rejects = read(path, **settings)
    return any(reject.ends_file for reject in rejects)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in FILES]
)
def test_each_file_is_worked_through(tmp_path: Path, name: str) -> None:
    expected = FILES[name]
    night = ANight(tmp_path, [], extra={"source": {"path": str(MESSY / name), **expected.settings}})
    done = night.run("--output", str(tmp_path / "out.jsonl"))
    assert "Traceback" not in done.stderr
    refused = not is_readable(MESSY / name, **expected.settings)
    damaged = breaks_off(MESSY / name, **expected.settings)
    assert done.returncode == (2 if refused else 3 if damaged else 0), done.stderr
    if refused:
        assert ("is a document" if expected.rejects else "nothing was read") in done.stderr
        assert expected.reason in done.stderr
        assert not (tmp_path / "out.jsonl").exists()

    rejects = lines_of(night.directory / "rejects.jsonl")
    assert len(rejects) == expected.rejects
    counts = night.status()
    assert counts["rejected"] == expected.rejects
    known = 0 if refused else expected.documents
    assert counts["documents"] + counts["duplicates"] == known
    assert counts["complete"] is not (damaged or refused)
    for states in counts["tasks"].values():
        assert sum(states.values()) == states["done"] + states["skipped"] == counts["documents"]

    rows = night.export()
    assert len(rows) == known
    for row in rows:
        assert row["topic_status"] == row["summary_status"]
        if row["summary_status"] == "done":
            assert row["topic"] in ("world", "sports", "business")
            assert row["summary"]
            assert row["topic_error"] is row["summary_error"] is None
        else:
            assert "empty text" in str(row["summary_error"])
    assert no_process_left(tmp_path)


def test_the_whole_corpus_beside_clean_rows(tmp_path: Path) -> None:
    clean = documents(5, longest=4)
    night = ANight(
        tmp_path,
        clean,
        extra={"source": {"path": [str(tmp_path / "in.jsonl"), str(MESSY)], "max_rejects": 5000}},
    )
    done = night.run()
    assert done.returncode == (3 if breaks_off(MESSY) else 0), done.stderr
    rows, counts = night.export(), night.status()
    assert [row["id"] for row in rows[:5]] == [row["id"] for row in clean]
    assert len(rows) == counts["documents"] + counts["duplicates"]
    assert counts["rejected"] == len(lines_of(night.directory / "rejects.jsonl")) > 700


def test_too_many_rejects_stop_before_the_model_is_asked(tmp_path: Path) -> None:
    source = {"path": str(MESSY / "json/amazon_cellphones.ndjson"), "max_rejects": 100}
    night = ANight(tmp_path, [], extra={"source": source}, script={"load_seconds": 600})
    done = night.run(timeout=60)
    assert done.returncode == 2
    assert "more than source.max_rejects = 100" in done.stderr
    assert night.loads() == 0
    assert len(lines_of(night.directory / "rejects.jsonl")) > 100
