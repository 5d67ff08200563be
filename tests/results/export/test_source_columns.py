from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import UsageError
from pipeline.results.export import Layout, export
from pipeline.stores.ledger.ledger import Ledger
from tests.results.export.runs import ALL, answered, memory_grown, rows_of, table
from tests.sources.reading import json_lines, packed, put
from tests.tiers import quick

ROWS = [
    {"id": "a", "text": "one", "Überschrift": "Größe", "year": 2001, "tags": ["x", "y"], "ok": True},
    {"id": "b", "text": "two", "Überschrift": None, "year": None, "tags": [], "ok": False},
    {"id": "c", "text": "three", "Überschrift": "=1+1", "year": 1999, "tags": ["z"], "ok": None},
]
MANY = {f"k{number}": number for number in range(300)}
BESIDE = ("Überschrift", "year", "tags", "ok")


def _written(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    """``rows`` as a file called ``name``, whatever that is."""
    plain, _, compression = name.partition("+")
    path = folder / (plain + compression)
    if plain.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    elif plain.endswith(".json"):
        put(path, packed(json.dumps(rows, ensure_ascii=False, indent=1).encode(), compression))
    elif plain.endswith((".csv", ".tsv")):
        mark = "," if plain.endswith(".csv") else "\t"
        cells = [["" if row[name] is None else str(row[name]) for name in rows[0]] for row in rows]
        quoted = [mark.join(f'"{cell}"' for cell in line) for line in [list(rows[0]), *cells]]
        put(path, packed("\n".join(quoted).encode(), compression))
    elif plain == "saved":
        datasets.Dataset.from_list(rows).save_to_disk(str(path))
    else:
        put(path, packed(json_lines(rows), compression))
    return path


@pytest.mark.parametrize(
    "name", ["in.jsonl", "in.jsonl+.gz", "in.jsonl+.zst", "in.json", "in.json+.zst", "in.parquet", "saved"]
)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_columns_of_the_source_stand_beside_the_answers(tmp_path: Path, name: str, ending: str) -> None:
    source = _written(tmp_path, name, ROWS)
    with answered(tmp_path, source) as ledger:
        rows, told = table(ledger, tmp_path / f"out.{ending}")
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    assert [row["topic"] for row in rows] == ["world"] * 3
    for row, given in zip(rows, ROWS, strict=True):
        assert {column: row[column] for column in BESIDE} == {column: given[column] for column in BESIDE}
        assert row["text"] == given["text"]
        assert row["file"] == str(source)
    assert len({row["line"] for row in rows}) == 3
    assert list(rows[0])[-7:] == ["file", "line", "text", *BESIDE]
    assert told.sentences == ()


@pytest.mark.parametrize("name", ["in.csv", "in.tsv+.gz"])
def test_cells_of_a_csv_are_text(tmp_path: Path, name: str) -> None:
    with answered(tmp_path, _written(tmp_path, name, ROWS)) as ledger:
        rows, _ = table(ledger, tmp_path / "out.parquet", Layout(fields=("year", "Überschrift")))
    assert [(row["line"], row["year"], row["Überschrift"]) for row in rows] == [
        (2, "2001", "Größe"),
        (3, "", ""),
        (4, "1999", "=1+1"),
    ]


def test_text_files_have_their_place_and_text(tmp_path: Path) -> None:
    for name in ("b.md", "deep/a.txt"):
        put(tmp_path / "in" / name, f"text of {name}")
    with answered(tmp_path, tmp_path / "in") as ledger:
        rows, _ = table(ledger, tmp_path / "out.jsonl")
    assert [(row["id"], row["file"], row["line"], row["text"]) for row in rows] == [
        (name, str(tmp_path / "in" / name), 1, f"text of {name}") for name in ("b.md", "deep/a.txt")
    ]


def test_files_with_other_columns_fill_one_table(tmp_path: Path) -> None:
    _written(tmp_path / "in", "a.jsonl", [{"id": "a", "text": "1", "n": 5, "x": {"y": 1}}])
    put(tmp_path / "in" / "b.csv", "id,text,n,só\nb,2,007,ja\n")
    pq.write_table(
        pa.table({"id": [3], "text": ["3"], "when": [datetime.date(2026, 1, 2)]}),
        tmp_path / "in" / "c.parquet",
    )
    with answered(tmp_path, tmp_path / "in") as ledger:
        rows, told = table(ledger, tmp_path / "out.parquet")
    shown = [{name: row[name] for name in ("id", "n", "x", "só", "when")} for row in rows]
    assert shown == [
        {"id": "a", "n": "5", "x": {"y": 1}, "só": None, "when": None},
        {"id": "b", "n": "007", "x": None, "só": "ja", "when": None},
        {"id": "3", "n": None, "x": None, "só": None, "when": datetime.date(2026, 1, 2)},
    ]
    assert told.sentences == ()


def test_types_of_parquet_stay(tmp_path: Path) -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    given = {
        "date": [datetime.date(2020, 2, 29), None],
        "moment": [datetime.datetime(2020, 1, 1, 12, 30, 1, 5), None],  # noqa: DTZ001  # has no zone
        "zoned": [datetime.datetime(2020, 1, 1, 12, tzinfo=zone), None],
        "price": [decimal.Decimal("1.50"), decimal.Decimal("-12345678901234567890.25")],
        "number": [0.1, float("nan")],
        "large": [2**63 - 1, -(2**63)],
        "nested": [{"a": [1, None], "b": None}, {"a": [], "b": "x"}],
        "nothing": [None, None],
    }
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["1", "2"], **given}), tmp_path / "in.parquet")
    with answered(tmp_path, tmp_path / "in.parquet") as ledger:
        rows, _ = table(ledger, tmp_path / "out.parquet")
    found = {name: [row[name] for row in rows] for name in given}
    assert found == {**given, "number": [0.1, None]}
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "out.parquet")}
    assert (types["large"], types["date"], types["zoned"]) == (
        "int64",
        "date32[day]",
        "timestamp[us, tz=UTC]",
    )


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1, "x", True], ["1", "x", "true"]),
        ([1, 2.5, None], [1.0, 2.5, None]),
        ([2**53 + 1, 0.5, None], ["9007199254740993", "0.5", None]),
        ([2**70, 1, None], [str(2**70), "1", None]),
        ([{"a": 1}, [1], None], ['{"a": 1}', "[1]", None]),
        ([{"a": 1}, {"b": "x"}, {}], [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": None, "b": None}]),
        ([[1], ["x"], [None]], [["1"], ["x"], [None]]),
        ([{}, {}, None], ["{}", "{}", None]),
        (
            [{f"k{n}": n for n in range(300)}, {}, None],
            [json.dumps({f"k{n}": n for n in range(300)}), "{}", None],
        ),
    ],
)
def test_what_has_no_type_in_common_is_text(tmp_path: Path, values: list[Any], shown: list[Any]) -> None:
    rows = [{"id": str(n), "text": str(n), "v": value} for n, value in enumerate(values)]
    with answered(tmp_path, _written(tmp_path, "in.jsonl", rows)) as ledger:
        parquet, _ = table(ledger, tmp_path / "out.parquet")
        lines, _ = table(ledger, tmp_path / "out.jsonl")
    assert [row["v"] for row in parquet] == shown
    assert [row["v"] for row in lines] == values


def test_names_that_are_ours_get_another(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "text": "t", "topic": "mine", "file": "f", "source_file": "s", "line": 9, "": "no name"}
    ]
    with answered(tmp_path, _written(tmp_path, "in.jsonl", rows)) as ledger:
        (row,), _ = table(ledger, tmp_path / "out.jsonl")
        assert (row["topic"], row["source_topic"]) == ("world", "mine")
        assert (row["source_file"], row["source_source_file"]) == ("s", "f")
        assert (row["line"], row["source_line"], row["source_"]) == (1, 9, "no name")
        assert "source_id" not in row
        (row,), _ = table(ledger, tmp_path / "out.jsonl", Layout(fields=("id",)), force=True)
        assert (row["id"], row["source_id"]) == ("1", 1)


def test_edited_and_removed_rows_are_null_and_counted(tmp_path: Path) -> None:
    source = _written(tmp_path, "in.jsonl", [*ROWS, {**ROWS[0], "id": "d"}])
    with answered(tmp_path, source) as ledger:
        # one removed, one edited, one moved to the front, one as it was but for a column that nobody read
        _written(
            tmp_path, "in.jsonl", [{**ROWS[0], "id": "d"}, {**ROWS[1], "text": "2"}, {**ROWS[2], "year": 7}]
        )
        rows, told = table(ledger, tmp_path / "out.jsonl", Layout(fields=("year",)))
    assert [(row["id"], row["year"], row["line"], row["topic"]) for row in rows] == [
        ("a", None, None, "world"),
        ("b", None, None, "world"),
        ("c", 7, 3, "world"),
        ("d", 2001, 1, "world"),
    ]
    assert {row["file"] for row in rows} == {str(source)}
    (said,) = told.sentences
    assert said == (
        "2 rows are not in the source as read then, being removed, changed or unreadable now: the columns of "
        "the source are empty there"
    )


def test_what_a_template_read_must_be_the_same(tmp_path: Path) -> None:
    source = _written(tmp_path, "in.jsonl", ROWS)
    with answered(tmp_path, source, fields=("year",)) as ledger:
        _written(tmp_path, "in.jsonl", [{**ROWS[0], "year": 2002}, *ROWS[1:]])
        rows, told = table(ledger, tmp_path / "out.jsonl", Layout(fields=("ok",)))
    assert [row["ok"] for row in rows] == [None, False, None]
    assert [row["line"] for row in rows] == [None, 2, 3]
    assert told.sentences[0].startswith("1 row is not")


def test_repeated_rows_keep_their_own_columns(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "text": "t", "n": 1},
        {"id": "b", "text": "t", "n": 2},
        {"id": "a", "text": "t", "n": 3},
    ]
    with answered(tmp_path, _written(tmp_path, "in.jsonl", rows)) as ledger:
        found, _ = table(ledger, tmp_path / "out.jsonl")
    assert [row["n"] for row in found] == [1, 2, 3]


def test_one_file_that_is_gone_costs_only_its_own_rows(tmp_path: Path) -> None:
    first, second = _written(tmp_path, "a.jsonl", ROWS[:1]), _written(tmp_path, "b.jsonl", ROWS[1:])
    with answered(tmp_path, [str(first), str(second)]) as ledger:
        first.unlink()
        rows, told = table(ledger, tmp_path / "out.jsonl", Layout(fields=("year",)))
    assert [(row["line"], row["year"]) for row in rows] == [(None, None), (1, None), (2, 1999)]
    assert f"nothing is at {first}" in told.sentences[0]


def test_a_damaged_file_gives_what_is_before_the_damage(tmp_path: Path) -> None:
    source = _written(tmp_path, "in.jsonl+.gz", ROWS)
    with answered(tmp_path, source) as ledger:
        whole = packed(json_lines(ROWS[:2]), ".gz")
        source.write_bytes(whole + packed(json_lines(ROWS[2:]), ".gz")[:-20])
        rows, told = table(ledger, tmp_path / "out.jsonl", Layout(fields=("year",)))
    assert [row["line"] for row in rows] == [1, 2, None]
    assert "1 row is" in told.sentences[0]
    assert "truncated" in told.sentences[0]


def test_groups_show_the_columns_of_their_first_row(tmp_path: Path) -> None:
    rows = [
        {"paper": "p", "page": 2, "text": "second", "note": "b"},
        {"paper": "p", "page": 1, "text": "first", "note": "a"},
        {"paper": "q", "page": 1, "text": "other", "note": "c"},
    ]
    _written(tmp_path, "a.jsonl", rows[:1])
    _written(tmp_path, "b.jsonl", rows[1:])
    paths = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    with answered(tmp_path, paths, group_by={"field": "paper", "order_by": "page"}) as ledger:
        found, told = table(ledger, tmp_path / "out.jsonl")
    assert [(row["id"], row["note"], row["page"]) for row in found] == [("p", "a", 1), ("q", "c", 1)]
    assert told.sentences == ()


def test_a_cell_that_is_not_utf8_costs_only_itself(tmp_path: Path) -> None:
    put(tmp_path / "in.csv", b"id,text,note,more\na,one,\xff\xfe,yes\n")
    with answered(tmp_path, tmp_path / "in.csv") as ledger:
        (row,), told = table(ledger, tmp_path / "out.jsonl")
    assert (row["note"], row["more"], told.sentences) == (None, "yes", ())


def test_a_column_that_stands_there_twice_is_left_out(tmp_path: Path) -> None:
    put(tmp_path / "in.csv", "id,text,x,x,y\na,one,1,2,3\n")
    with answered(tmp_path, tmp_path / "in.csv") as ledger:
        (row,), _ = table(ledger, tmp_path / "out.jsonl")
    assert list(row)[-2:] == ["text", "y"]


def test_a_field_that_no_row_has_is_refused(tmp_path: Path) -> None:
    with answered(tmp_path, _written(tmp_path, "in.jsonl", ROWS)) as ledger:
        with pytest.raises(UsageError, match="no row of the source has the field 'yaer'"):
            export(ledger, tmp_path / "out.jsonl", Layout(fields=("year", "yaer")))
        assert not (tmp_path / "out.jsonl").exists()


def test_of_a_limited_run_only_its_rows_are_read(tmp_path: Path) -> None:
    endless = [{"id": str(n), "text": f"t{n}", f"column {n}": n} for n in range(3000)]
    with answered(tmp_path, _written(tmp_path, "in.jsonl", endless), limit=3) as ledger:
        rows, told = table(ledger, tmp_path / "out.jsonl")
    assert list(rows[0])[-4:] == ["text", "column 0", "column 1", "column 2"]
    assert [row["column 1"] for row in rows] == [None, 1, None]
    assert told.sentences == ()


def test_too_many_different_columns_are_refused(tmp_path: Path) -> None:
    rows = [{"id": str(n), "text": f"t{n}", f"column {n}": n} for n in range(3000)]
    with (
        answered(tmp_path, _written(tmp_path, "in.jsonl", rows)) as ledger,
        pytest.raises(UsageError, match="more than 2,000 different columns; name those"),
    ):
        export(ledger, tmp_path / "out.jsonl", ALL)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_an_earlier_export_with_source_columns_is_replaced_and_a_persons_is_not(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"out.{ending}"
    with answered(tmp_path, _written(tmp_path, "in.jsonl", ROWS)) as ledger:
        export(ledger, path)
        export(ledger, path, ALL)
        export(ledger, path, Layout(fields=("year",), flat=True), force=True)
        with pytest.raises(UsageError, match="has a column 'year', which this export would not write"):
            export(ledger, path)
        export(ledger, path, ALL)
        if ending != "csv":
            return
        content = path.read_text(encoding="utf-8").splitlines()
        path.write_text("".join(f"{line},mine\r\n" for line in content), encoding="utf-8")
        with pytest.raises(UsageError, match="has a column 'mine'"):
            export(ledger, path, ALL)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over 3,000 texts of 40,000 characters, all different: 120 MB."""
    folder = tmp_path_factory.mktemp("large")
    rows = ({"id": f"d{n}", "text": f"{n:05} " * 6667, "n": n} for n in range(3000))
    with answered(folder, put(folder / "in.jsonl", json_lines(rows))):
        pass
    return folder


@pytest.mark.parametrize("ending", quick(["jsonl", "parquet"], "parquet"))
def test_memory_does_not_hold_the_source(large: Path, tmp_path: Path, ending: str) -> None:
    ledger, out = large / "run" / "ledger.sqlite", tmp_path / f"out.{ending}"
    first = "export(ledger, Path(f'{out}.plain.jsonl'), Layout(fields=('n',)))"
    assert memory_grown(ledger, first, "export(ledger, out, Layout(fields=None))", out) < 60e6
    with Ledger.open(ledger, write=False) as opened:
        assert opened.count_rows() == 3000
    if ending == "jsonl":
        with out.open("rb") as lines:
            assert sum(1 for _ in lines) == 3000


def test_rows_of_helper_reads_tsv(tmp_path: Path) -> None:
    with answered(tmp_path, _written(tmp_path, "in.jsonl", ROWS)) as ledger:
        export(ledger, tmp_path / "out.tsv", Layout(fields=("tags",)))
    assert [row["tags"] for row in rows_of(tmp_path / "out.tsv")] == ['["x", "y"]', "[]", '["z"]']
