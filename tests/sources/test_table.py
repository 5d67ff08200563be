"""CSV and TSV: exact cells, or a reject."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.sources.reading import packed, pairs, put, read

ROWS = [
    ["1", "plain"],
    ["2", 'quo"te, and\ncomma'],
    ["3", "a\r\nb\rc"],
    ["4", ""],
    ["5", "nul\0 \u2028 \x85 é"],
    ["6", " spaces "],
    ["7", "last"],
]


def written(rows: list[list[str]], header: tuple[str, ...] = ("id", "text"), **dialect: str) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, **dialect)  # type: ignore[arg-type]  # the dialect's settings are text here
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue().encode()


@pytest.mark.parametrize(
    ("ending", "delimiter"), [(".csv", ","), (".tsv", "\t"), (".csv", ";"), (".csv", "|"), (".csv", "\t")]
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_exact_cells(
    tmp_path: Path, ending: str, delimiter: str, line_end: str, compression: str, mark: bytes
) -> None:
    data = mark + written(ROWS, delimiter=delimiter, lineterminator=line_end)
    documents, rejects = read(
        put(tmp_path / f"a{ending}{compression}", packed(data.removesuffix(line_end.encode()), compression))
    )
    assert rejects == []
    assert pairs(documents) == [(identity, text) for identity, text in ROWS]
    assert all(data[document.origin.offset or 0 :].startswith(document.id.encode()) for document in documents)


def test_a_tab_separated_file_may_hold_commas_in_its_header(tmp_path: Path) -> None:
    assert pairs(read(put(tmp_path / "a.tsv", "id\ttext\tx,y\n1\ta,b\tc\n"))[0]) == [("1", "a,b")]


def test_further_fields_and_names(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "Key,,title,Body\n1,x,T,t\n")
    documents, _ = read(path, ["title", "", "gone"], id_field="Key", text_field="Body")
    assert dict(documents[0].fields) == {"": "x", "title": "T"}


@pytest.mark.parametrize("row", ["2", "2,b,c", "2,b,"])
def test_a_row_of_another_width_is_a_reject(tmp_path: Path, row: str) -> None:
    documents, rejects = read(put(tmp_path / "a.csv", f"id,text\n1,a\n{row}\n\n3,c\n"))
    assert pairs(documents) == [("1", "a"), ("3", "c")]
    assert [(reject.origin.line, reject.origin.offset, reject.excerpt) for reject in rejects] == [
        (3, 12, row)
    ]
    assert "cells" in rejects[0].reason


def test_bad_bytes_reject_their_row_only_where_they_matter(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", b'id,text,other\n1,a,caf\xe9\n2,"caf\xe9\n",x\n3,c,x\n')
    documents, rejects = read(path)
    assert pairs(documents) == [("1", "a"), ("3", "c")]
    assert "byte 29 is 0xe9" in rejects[0].reason
    assert rejects[0].origin.line == 3
    assert len(read(path, ["other"])[1]) == 2


def test_an_empty_id_is_a_reject_and_an_empty_text_a_document(tmp_path: Path) -> None:
    documents, rejects = read(put(tmp_path / "a.csv", "id,text\n,a\n2,\n"))
    assert pairs(documents) == [("2", "")]
    assert "is empty" in rejects[0].reason


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"name,body\n1,2\n", "no column 'id' (columns: 'name', 'body')"),
        (b"id,text,text\n1,2,3\n", "'text' more than once"),
        (b"\x96\xbc\x91O,\x94N\x97\xee\n1,2\n", "Shift-JIS"),
        (b'id,"te"xt"\n1,2\n', "no column 'id'"),
        (b"x" * 2_000_000, "no column 'id'"),
    ],
)
def test_a_header_that_does_not_do_is_the_files_reject(tmp_path: Path, data: bytes, words: str) -> None:
    documents, rejects = read(put(tmp_path / "a.csv", data))
    assert documents == []
    assert len(rejects) == 1
    assert words in rejects[0].reason
    assert len(rejects[0].reason) < 1000


@pytest.mark.parametrize("data", ["", "\n\n", "id,text\n", "\ufeffid,text"])
def test_no_rows(tmp_path: Path, data: str) -> None:
    assert read(put(tmp_path / "a.csv", data)) == ([], [])


def test_a_cell_of_ten_megabytes(tmp_path: Path) -> None:
    text = ("a, " * 20 + "\n") * 170_000
    assert pairs(read(put(tmp_path / "a.csv", f'id,text\n1,"{text}"\n2,b\n'))[0]) == [("1", text), ("2", "b")]


@pytest.mark.parametrize(
    ("broken", "line_count"),
    [
        ('2,"say "hi" now"', 1),  # quotes balance: the row ends with its line
        ('2,"he said "pdet" \nho,landa"', 2),  # the second line has two cells, and is no row
        ('2,"5" disk"', 1),
        ('2,"a "b\nfoo,bar\nc"', 3),
        ('2,"', 1),
    ],
)
def test_nothing_is_made_of_the_lines_of_a_broken_cell(tmp_path: Path, broken: str, line_count: int) -> None:
    documents, rejects = read(put(tmp_path / "a.csv", f'id,text\n1,"a"\n{broken}\n3,"c"\n4,"d"\n'))
    assert pairs(documents) == [("1", "a"), ("3", "c"), ("4", "d")]
    assert len(rejects) == line_count
    assert [reject.origin.line for reject in rejects] == list(range(3, 3 + line_count))


def test_after_broken_quoting_every_line_is_accounted_for(tmp_path: Path) -> None:
    rows = "".join(f"{number},plain\n" for number in range(10, 20))
    documents, rejects = read(
        put(tmp_path / "a.csv", f'id,text\n1,a\n2,"never closed\n{rows}20,"quoted, again"\n21,plain\n')
    )
    assert pairs(documents) == [("1", "a"), ("20", "quoted, again"), ("21", "plain")]
    assert len(rejects) == 11
    assert "broken" in rejects[0].reason
    assert all("follows a row with broken quoting" in reject.reason for reject in rejects[1:])


def test_an_open_quote_up_to_the_end(tmp_path: Path) -> None:
    documents, rejects = read(put(tmp_path / "a.csv", 'id,text\n1,a\n2,"open\n3,c\n4,d\n'))
    assert pairs(documents) == [("1", "a")]
    assert [reject.origin.line for reject in rejects] == [3, 4, 5]


def test_truncated_at_every_length_never_gives_a_cut_cell(tmp_path: Path) -> None:
    data = packed(written(ROWS), ".gz")
    for length in range(len(data)):
        documents, rejects = read(put(tmp_path / "a.csv.gz", data[:length]))
        assert pairs(documents) == [(identity, text) for identity, text in ROWS[: len(documents)]]
        assert len(rejects) == 1


# ── as people have them ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("said", ["sep=;\r\n", '"sep=;"\n', "SEP=;\n"])
def test_a_line_that_names_the_delimiter_is_obeyed(tmp_path: Path, mark: str, said: str) -> None:
    documents, rejects = read(put(tmp_path / "a.csv", f"{mark}{said}id;text\n1;a, b\n2;c\n"))
    assert pairs(documents) == [("1", "a, b"), ("2", "c")]
    assert rejects == []
    assert [document.origin.line for document in documents] == [3, 4]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_tables_one_behind_the_other(tmp_path: Path, mark: str) -> None:
    """Each with its header, in its own order and with columns of its own."""
    first, second = f"{mark}id,text\n1,a\n2,b\n", f"{mark}id,text\n3,c\n"
    third = f"{mark}label,text,id\nx,d,4\n"
    documents, rejects = read(put(tmp_path / "a.csv", first + second + third + first))
    assert pairs(documents) == [("1", "a"), ("2", "b"), ("3", "c"), ("4", "d"), ("1", "a"), ("2", "b")]
    assert rejects == []
    said = "sep=;\nid;text\n1;a\n"
    assert (len(read(put(tmp_path / "b.csv", said + said))[0]), read(tmp_path / "b.csv")[1]) == (2, [])


def test_a_text_that_is_called_like_its_column_is_a_text(tmp_path: Path) -> None:
    assert pairs(read(put(tmp_path / "a.csv", "id,text\n1,text\nid,a\n"))[0]) == [("1", "text"), ("id", "a")]


@pytest.mark.parametrize("there", ["ID", "Id ", " id", "i_d", "\ufeffId"])
def test_a_column_that_is_spelled_differently_is_named(tmp_path: Path, there: str) -> None:
    _, rejects = read(put(tmp_path / "a.csv", f"x,{there},text\n0,1,a\n"))
    assert f"set source.id_field: {json.dumps(there, ensure_ascii=False)}" in rejects[0].reason
    documents, _ = read(tmp_path / "a.csv", id_field=there)
    assert pairs(documents) == [("1", "a")]
    _, rejects = read(put(tmp_path / "b.csv", "ID,Id,text\n0,1,a\n"))
    assert "set source.id_field and source.text_field" in rejects[0].reason


def test_lines_of_json_under_the_name_of_a_table(tmp_path: Path) -> None:
    _, rejects = read(put(tmp_path / "a.csv", '{"id": "1", "text": "a"}\n'))
    assert "set source.format: jsonl" in rejects[0].reason
