from __future__ import annotations

import csv
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import polars
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.results.export import Layout, export
from tests.results.export.runs import ALL, ODDS, answered, rows_of, table
from tests.sources.reading import json_lines, put

FLAT = Layout(flat=True)
PARTS = ["topic_probability_world", "topic_probability_sports", "topic_probability_tech"]
DAY = "2026-01-02"


def _source(folder: Path) -> Path:
    import pyarrow as pa

    columns = {
        "id": ["a", "b", "c"],
        "text": ["one", 'two "quoted"\nlines', "drei, ü"],
        "year": pa.array([2001, None, -7], pa.int32()),
        "score": [0.5, 1.0, None],
        "ok": [True, None, False],
        "tags": [["x", "y"], [], None],
        "day": pa.array([DAY, None, DAY]).cast(pa.date32()),
        "code": ["007", None, "=cmd()"],
    }
    pq.write_table(pa.table(columns), folder / "in.parquet")
    return folder / "in.parquet"


# ── read by the tools that people read tables with ──────────────────────────────────────────────────────────


def _with_pandas(path: Path) -> Any:
    if path.suffix == ".parquet":
        return pandas.read_parquet(path)
    if path.suffix == ".jsonl":
        return pandas.read_json(path, lines=True, dtype=False, precise_float=True)
    mark = "\t" if path.suffix == ".tsv" else ","
    return pandas.read_csv(path, sep=mark, dtype={"code": str, "year": "Int64"})


def _with_polars(path: Path) -> Any:
    if path.suffix == ".parquet":
        return polars.read_parquet(path)
    if path.suffix == ".jsonl":
        return polars.read_ndjson(path)
    mark = "\t" if path.suffix == ".tsv" else ","
    return polars.read_csv(
        path, separator=mark, try_parse_dates=True, schema_overrides={"code": polars.String}
    )


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet"])
def test_pandas_and_polars_load_it_with_its_types(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out.{ending}"
    with answered(tmp_path, _source(tmp_path), pending=1) as ledger:
        export(ledger, path, Layout(fields=None, flat=True))
    frame, other = _with_pandas(path), _with_polars(path)
    assert list(frame.columns) == other.columns
    assert other["year"].dtype.is_integer()
    assert other["year"].to_list() == [2001, None, -7]
    assert [None if pandas.isna(year) else int(year) for year in frame["year"]] == [2001, None, -7]
    assert other["line"].to_list() == [1, 2, 3] == frame["line"].tolist()
    assert frame["line"].dtype.kind == "i"
    for odds in (other[PARTS[0]].to_list(), frame[PARTS[0]].tolist()):
        assert odds[:2] == [0.6, 0.6]
        assert odds[2] is None or odds[2] != odds[2]  # pandas' nothing
    assert other["score"].to_list() == [0.5, 1.0, None]
    assert other["ok"].to_list() == [True, None, False]
    assert other["ok"].dtype == polars.Boolean
    assert [None if pandas.isna(ok) else bool(ok) for ok in frame["ok"]] == [True, None, False]
    assert other["text"].to_list() == frame["text"].tolist() == ["one", 'two "quoted"\nlines', "drei, ü"]
    assert [str(day) for day in other["day"].drop_nulls()] == [DAY, DAY]
    code = "'=cmd()" if ending in ("csv", "tsv") else "=cmd()"
    assert other["code"].to_list() == ["007", None, code]
    assert [None if pandas.isna(each) else each for each in frame["code"]] == ["007", None, code]
    assert other["topic_status"].to_list() == frame["topic_status"].tolist() == ["done", "done", "pending"]
    lists = other["tags"].to_list()
    assert lists == (['["x", "y"]', "[]", None] if ending in ("csv", "tsv") else [["x", "y"], [], None])


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet"])
def test_they_load_a_table_without_rows(tmp_path: Path, ending: str) -> None:
    put(tmp_path / "in.csv", "id,text,year\n")
    path = tmp_path / f"out.{ending}"
    with answered(tmp_path, tmp_path / "in.csv") as ledger:
        assert export(ledger, path, Layout(fields=("year",), flat=True)).rows == 0
    if ending != "jsonl":  # which then has no columns either
        assert list(_with_pandas(path).columns) == _with_polars(path).columns
        assert "year" in _with_polars(path).columns


# ── flat ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_flat_has_a_column_a_label(tmp_path: Path, ending: str) -> None:
    with answered(tmp_path, _source(tmp_path), pending=1) as ledger:
        rows, told = table(ledger, tmp_path / f"out.{ending}", FLAT)
    assert list(rows[0])[5:] == ["topic_probability", "topic_second", "topic_margin", *PARTS]
    assert float(rows[0]["topic_margin"]) == pytest.approx(0.3)
    assert rows[0]["topic_second"] == "sports"
    assert [float(rows[0][name]) for name in PARTS] == list(ODDS.values())
    assert not any(rows[2][name] for name in ["topic_second", "topic_margin", *PARTS])
    (said,) = told.sentences
    assert said == (
        "1 of 3 rows are not answered yet; they are in the table, their status is pending. Run the same "
        "configuration again to go on"
    )
    assert (told.rows, told.pending) == (3, 1)


# ── format and place ────────────────────────────────────────────────────────────────────────────────────────


def test_the_format_is_that_of_the_name_or_said(tmp_path: Path) -> None:
    with answered(tmp_path, _source(tmp_path)) as ledger:
        export(ledger, tmp_path / "out.TSV")
        export(ledger, tmp_path / "out.txt", Layout(format="tsv"))
        assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "out.TSV").read_bytes()
        with pytest.raises(UsageError, match=r"end in \.jsonl, \.csv, \.tsv or \.parquet, or a format"):
            export(ledger, tmp_path / "out.xlsx")
        with pytest.raises(UsageError, match="by its name it is csv, and the format is said to be parquet"):
            export(ledger, tmp_path / "out.csv", Layout(format="parquet"))


@pytest.mark.parametrize("name", ["jsonl", "csv", "tsv", "parquet"])
def test_standard_output_gets_the_same_bytes(
    tmp_path: Path, name: Any, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with answered(tmp_path, _source(tmp_path)) as ledger:
        export(ledger, tmp_path / f"out.{name}", Layout(fields=None))
        export(ledger, None, Layout(fields=None, format=name))
    assert capfdbinary.readouterr().out == (tmp_path / f"out.{name}").read_bytes()


def test_an_export_in_a_run_directory_is_private_and_others_keep_their_rights(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        with answered(tmp_path, _source(tmp_path)) as ledger:
            for path in (tmp_path / "run" / "tables" / "out.csv", tmp_path / "out.csv"):
                export(ledger, path)
            (tmp_path / "mine.csv").touch(mode=0o640)
            (tmp_path / "mine.csv").chmod(0o640)
            export(ledger, tmp_path / "mine.csv")
    finally:
        os.umask(mask)
    rights = [
        stat.S_IMODE((tmp_path / name).stat().st_mode)
        for name in ("run/tables/out.csv", "out.csv", "mine.csv")
    ]
    assert rights == [0o600, 0o644, 0o640]


# ── any value ───────────────────────────────────────────────────────────────────────────────────────────────

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=30, deadline=None)
@given(name=_TEXT, values=st.lists(_VALUE, min_size=1, max_size=4), word=_TEXT)
def test_any_value_under_any_name_comes_back(
    name: str, values: list[Any], word: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    rows = [{"id": f"{n}", "text": f"x{word}", f"_{name}": value} for n, value in enumerate(values)]
    with answered(folder, put(folder / "in.jsonl", json_lines(rows))) as ledger:
        for ending in ("jsonl", "csv", "tsv", "parquet"):
            export(ledger, folder / f"out.{ending}", ALL)
    assert [row[f"_{name}"] for row in rows_of(folder / "out.jsonl")] == values
    for ending in ("csv", "tsv"):
        with (folder / f"out.{ending}").open(encoding="utf-8", newline="") as stream:
            cells = list(csv.DictReader(stream, delimiter="," if ending == "csv" else "\t"))
        assert [
            _from_cell(row[f"_{name}"], value) for row, value in zip(cells, values, strict=True)
        ] == values
        assert [row["text"] for row in cells] == [f"x{word}"] * len(cells)
    assert pq.read_table(folder / "out.parquet").num_rows == len(values)


def _from_cell(cell: str, value: Any) -> Any:
    """``value`` where the cell says it, else the cell."""
    if value is None or value == "":
        return value if cell == "" else cell
    if isinstance(value, str):
        return value if cell in (value, f"'{value}") else cell
    return value if json.loads(cell) == value else cell


def test_no_name_of_a_column_is_computed(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "t", "=1+1": "x", "n": "-5", "m": "-5-5", "w": "\uff1d1"}]
    with answered(tmp_path, put(tmp_path / "in.jsonl", json_lines(rows))) as ledger:
        for _ in range(2):  # and it is known again as an earlier export
            export(ledger, tmp_path / "out.csv", ALL)
    text = (tmp_path / "out.csv").read_bytes().decode()
    header, row = list(csv.reader(io.StringIO(text)))
    assert header[-4:] == ["'=1+1", "n", "m", "w"]
    assert row[-4:] == ["x", "-5", "'-5-5", "'\uff1d1"]


def test_a_reader_that_goes_away_ends_it(tmp_path: Path) -> None:
    rows = ({"id": str(n), "text": "word " * 50} for n in range(3000))
    with answered(tmp_path, put(tmp_path / "in.jsonl", json_lines(rows))):
        pass
    command = [sys.executable, "-m", "pipeline.cli.main", "export", str(tmp_path / "run"), "-o", "-"]
    with subprocess.Popen(
        [*command, "--all-fields"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read().decode()
    assert json.loads(first)["id"] == "0"
    assert "Traceback" not in said
