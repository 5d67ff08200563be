from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import StoppedEarly, UsageError
from pipeline.records import Outcome
from pipeline.results.export import Layout, export
from pipeline.results.export.places import check_output
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.escape import spreadsheet_text
from tests.results.export.runs import memory_grown
from tests.stores.ledger.ledgers import begun, document, documents, done, failed, job, read
from tests.tiers import quick

LABEL = [
    "topic",
    "topic_status",
    "topic_error",
    "topic_finish_reason",
    "topic_probability",
    "topic_probabilities",
]
TAGS = [name.replace("topic", "tags") for name in LABEL]
SUMMARY = ["summary", "summary_status", "summary_error", "summary_finish_reason"]
TASKS = (job(), job("tags", multi=True), job("summary", kind="summarize"))
ENDINGS = ("jsonl", "csv", "parquet")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.sqlite", write=True) as opened:
        yield opened


def _answered(ledger: Ledger) -> None:
    """Five rows: all answered, one failed, one abstained, one untouched, one empty; and the first row once
    more.
    """
    a, b, c, d, empty = document("a"), document("b"), document("c"), document("d"), document("empty", " ")
    run = begun(ledger, [a, b, c, d, empty, a], *TASKS)
    several = {"world": 0.9, "sports": 0.7}
    ledger.finish(
        run,
        [
            done("topic", a.key, "world"),
            done("tags", a.key, ["world", "sports"], probabilities=several),
            done("summary", a.key, "Two lines\nof text", probabilities=None, finish_reason="length"),
            failed("topic", b.key, message="no memory"),
            failed("tags", b.key, "quarantined", "it died"),
            done("topic", c.key, None, finish_reason="abstained"),
            done("tags", c.key, [], probabilities={"world": 0.2, "sports": 0.1}),
        ],
    )


def _read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist(maps_as_pydicts="strict")
    return rows


def _one(ledger: Ledger, *rows: Any, outcomes: list[Outcome] | None = None) -> None:
    run = begun(ledger, rows, job())
    ledger.finish(run, outcomes or [])


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_row_a_document_in_input_order(ledger: Ledger, tmp_path: Path, ending: str) -> None:
    _answered(ledger)
    path = tmp_path / f"out.{ending}"
    assert export(ledger, path).rows == 6
    rows = _read(path)
    assert [list(row) for row in rows] == [["id", *LABEL, *TAGS, *SUMMARY]] * 6
    assert [row["id"] for row in rows] == ["a", "b", "c", "d", "empty", "a"]
    assert rows[5] == rows[0]
    assert [rows[0][name] for name in LABEL] == [
        "world",
        "done",
        None,
        "stop",
        0.75,
        {"world": 0.75, "sports": 0.25},
    ]
    assert [rows[0][name] for name in TAGS] == [
        ["world", "sports"],
        "done",
        None,
        "stop",
        0.7,
        {"world": 0.9, "sports": 0.7},
    ]
    assert [rows[0][name] for name in SUMMARY] == ["Two lines\nof text", "done", None, "length"]
    assert [rows[1][name] for name in LABEL] == [None, "failed", "broken: no memory", None, None, None]
    assert [rows[1][name] for name in TAGS[:3]] == [None, "quarantined", "broken: it died"]
    assert [rows[2][name] for name in LABEL[:5]] == [None, "done", None, "abstained", 0.75]
    assert [rows[2][name] for name in TAGS[:5]] == [[], "done", None, "stop", 0.8]
    assert [rows[3][name] for name in SUMMARY] == [None, "pending", None, None]
    assert [rows[4][name] for name in SUMMARY[:2]] == [None, "skipped"]
    assert "empty text" in rows[4]["summary_error"]


def test_csv_says_the_same_in_text(ledger: Ledger, tmp_path: Path) -> None:
    _answered(ledger)
    export(ledger, tmp_path / "out.csv")
    export(ledger, tmp_path / "out.jsonl")
    plain, text = _read(tmp_path / "out.jsonl"), _read(tmp_path / "out.csv")
    assert len(plain) == len(text)
    for row, cells in zip(plain, text, strict=True):
        for name, value in row.items():
            shown = (
                json.dumps(value) if isinstance(value, list | dict) else "" if value is None else str(value)
            )
            assert cells[name] == shown


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_run_without_documents_gives_a_file_without_rows(
    ledger: Ledger, tmp_path: Path, ending: str
) -> None:
    begun(ledger, [], *TASKS)
    assert export(ledger, tmp_path / f"out.{ending}").rows == 0
    assert _read(tmp_path / f"out.{ending}") == []
    assert export(ledger, tmp_path / f"out.{ending}").rows == 0


def test_parquet_has_one_schema_whether_empty_or_full(ledger: Ledger, tmp_path: Path) -> None:
    ledger.accept_tasks(TASKS, fork=False)
    export(ledger, tmp_path / "none.parquet")
    begun(ledger, documents(3), *TASKS)
    export(ledger, tmp_path / "nulls.parquet")
    _answered(ledger)
    export(ledger, tmp_path / "full.parquet")
    schemas = [pq.read_schema(tmp_path / f"{name}.parquet") for name in ("none", "nulls", "full")]
    assert schemas[0] == schemas[1] == schemas[2]
    kinds = {field.name: str(field.type) for field in schemas[0]}
    assert (kinds["topic"], kinds["tags"]) == ("string", "list<element: string>")
    assert kinds["topic_probabilities"].startswith("map<string, double")


def test_parquet_is_written_in_groups(ledger: Ledger, tmp_path: Path) -> None:
    begun(ledger, documents(5000))
    assert export(ledger, tmp_path / "out.parquet").rows == 5000
    assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups == 3
    assert [row["id"] for row in _read(tmp_path / "out.parquet")] == [row.id for row in documents(5000)]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_of_a_csv_is_computed_by_a_spreadsheet(ledger: Ledger, tmp_path: Path, start: str) -> None:
    row = document(start + "1+1")
    _one(ledger, row, outcomes=[done("topic", row.key, start + 'HYPERLINK("http://x")')])
    export(ledger, tmp_path / "out.csv")
    (cells,) = _read(tmp_path / "out.csv")
    assert cells["id"] == "'" + start + "1+1"
    assert cells["topic"] == "'" + start + 'HYPERLINK("http://x")'
    export(ledger, tmp_path / "out.jsonl")
    assert _read(tmp_path / "out.jsonl")[0]["id"] == start + "1+1"


@settings(max_examples=settings().max_examples // 2, deadline=None)  # three files each
@given(name=st.text(min_size=1), answer=st.text(min_size=1))
def test_any_text_comes_back(name: str, answer: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("any")
    row = document(name)
    with Ledger.open(folder / "ledger.sqlite", write=True) as ledger:
        _one(ledger, row, outcomes=[done("topic", row.key, answer)])
        for ending in ENDINGS:
            export(ledger, folder / f"out.{ending}")
            (found,) = _read(folder / f"out.{ending}")
            written = spreadsheet_text if ending == "csv" else str
            assert found["topic"] == written(answer)
            assert found["id"] == written(name)


@pytest.mark.parametrize("ending", ENDINGS)
def test_lone_surrogates_and_numbers_that_are_none(ledger: Ledger, tmp_path: Path, ending: str) -> None:
    row = document("a \ud800")
    odd = {"world \udfff": float("nan"), "sports": float("inf"), "x": 0.5}
    _one(ledger, row, outcomes=[done("topic", row.key, "answer \udc00", probabilities=odd)])
    export(ledger, tmp_path / f"out.{ending}")
    (found,) = _read(tmp_path / f"out.{ending}")
    assert found["topic"] == "answer \ufffd"
    assert not found["topic_probability"]
    numbers = found["topic_probabilities"]
    assert (json.loads(numbers) if ending == "csv" else numbers) == {
        "world \ufffd": None,
        "sports": None,
        "x": 0.5,
    }
    assert b"NaN" not in (tmp_path / f"out.{ending}").read_bytes()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.xlsx", r"must end in \.jsonl, \.csv, \.tsv or \.parquet"),
        ("out", "must end in"),
        ("in.jsonl/out.csv", "in.jsonl is a file"),
        ("folder.csv", "it is a folder"),
        ("in.jsonl", "it is an input of the run; choose another name"),
        ("link.jsonl", "it is an input of the run"),
        ("hard.jsonl", "it is an input of the run"),
        ("data/out.jsonl", "the next run would read it from the folder"),
    ],
)
def test_places_that_are_refused(tmp_path: Path, name: str, message: str) -> None:
    for folder in ("folder.csv", "data"):
        (tmp_path / folder).mkdir()
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"{}")
    (tmp_path / "link.jsonl").symlink_to(source)
    (tmp_path / "hard.jsonl").hardlink_to(source)
    with pytest.raises(UsageError, match=message):
        check_output(
            tmp_path / name,
            Layout(),
            [str(source), str(tmp_path / "data"), "hf://a/b", "https://host/in.jsonl"],
        )
    check_output(tmp_path / "OUT.JSONL", Layout(), [str(source)])


def test_a_missing_folder_is_made(ledger: Ledger, tmp_path: Path) -> None:
    begun(ledger, documents(1))
    assert export(ledger, tmp_path / "a" / "b" / "out.jsonl").rows == 1
    assert len(_read(tmp_path / "a" / "b" / "out.jsonl")) == 1


def test_inputs_are_never_overwritten_not_even_by_force(ledger: Ledger, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": "a", "text": "x"}\n')
    begun(ledger, documents(2))
    tasks = [{"name": "s", "kind": "summarize"}]
    config = {
        "model": {"id": "m"},
        "source": {"path": str(source)},
        "tasks": tasks,
        "run": {"directory": "r"},
    }
    ledger.begin_run({"config": config})
    with pytest.raises(UsageError, match="is an input of the run"):
        export(ledger, source, force=True)
    assert source.read_text() == '{"id": "a", "text": "x"}\n'


def _foreign(path: Path) -> None:
    if path.suffix == ".parquet":
        import pyarrow as pa

        pq.write_table(pa.table({"id": ["a"], "text": ["mine"]}), path)
    else:
        path.write_text('{"id": "a", "text": "mine"}\n' if path.suffix == ".jsonl" else "id,text\na,mine\n")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_of_somebody_else_is_kept_without_force(ledger: Ledger, tmp_path: Path, ending: str) -> None:
    begun(ledger, documents(2))
    path = tmp_path / f"out.{ending}"
    _foreign(path)
    before = path.read_bytes()
    with pytest.raises(
        UsageError, match="exists and is not an earlier export of this run; choose another name, or --force"
    ):
        export(ledger, path)
    assert path.read_bytes() == before
    assert export(ledger, path, force=True).rows == 2
    assert export(ledger, path).rows == 2


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_earlier_export_is_replaced_also_when_a_task_came_since(
    ledger: Ledger, tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"out.{ending}"
    run = begun(ledger, documents(2), job("summary", kind="summarize"))
    export(ledger, path)
    ledger.accept_tasks(TASKS, fork=False)
    read(ledger, run, documents(3))
    assert export(ledger, path).rows == 3
    assert list(_read(path)[0]) == ["id", *SUMMARY, *LABEL, *TAGS]


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"[1]\n", b"not json\n", b'{"id": 1}\n', b"{" * 100_000, b"id\n1\n", b"\n"]
)
@pytest.mark.parametrize("ending", ENDINGS)
def test_unreadable_files_are_somebody_elses(
    ledger: Ledger, tmp_path: Path, content: bytes, ending: str
) -> None:
    begun(ledger, documents(1))
    path = tmp_path / f"out.{ending}"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not an earlier export"):
        export(ledger, path)
    assert path.read_bytes() == content


def test_columns_of_two_tasks_that_would_be_one(ledger: Ledger, tmp_path: Path) -> None:
    begun(ledger, documents(1), job("topic"), job("topic_status"))
    with pytest.raises(UsageError, match="two tasks of this run would both fill the column 'topic_status'"):
        export(ledger, tmp_path / "out.csv")


def test_a_failed_export_leaves_the_earlier_one(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(ledger, documents(2))
    path = tmp_path / "out.jsonl"
    export(ledger, path)
    before = path.read_bytes()

    def broken(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StoppedEarly, match="Input/output"):
        export(ledger, path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.glob(".*")] == []


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with 3,000 answers of 40,000 characters, all different: 120 MB."""
    path = tmp_path_factory.mktemp("large") / "ledger.sqlite"
    with Ledger.open(path, write=True) as ledger:
        rows = documents(3000)
        run = begun(ledger, rows, job("summary", kind="summarize"))
        ledger.finish(run, [done("summary", row.key, row.key * 1250, probabilities=None) for row in rows])
    return path


@pytest.mark.parametrize("ending", quick(ENDINGS, "parquet"))
def test_memory_does_not_hold_the_answers(large: Path, tmp_path: Path, ending: str) -> None:
    first = "sum(1 for row in ledger.rows())"
    assert memory_grown(large, first, "export(ledger, out)", tmp_path / f"out.{ending}") < 60e6
