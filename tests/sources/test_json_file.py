"""Lists, single objects, lists under a key, and JSON lines under a .json name."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import pandas
import pytest

from pipeline.config import SourceConfig
from pipeline.errors import SourceError
from pipeline.sources import read_source
from pipeline.sources.json_scan import Scanner
from tests.sources.reading import json_lines, packed, pairs, put, read

ROWS = [
    {"id": str(number), "text": f'text "{number}" [}}]\\ \n', "more": {"a": [1, {"b": "]"}]}}
    for number in range(5)
]
PAIRS = [(str(row["id"]), str(row["text"])) for row in ROWS]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_list_of_objects(tmp_path: Path, indent: int | None, compression: str, mark: bytes) -> None:
    data = mark + b" \n" + json.dumps(ROWS, indent=indent).encode() + b"\n \n"
    documents, rejects = read(put(tmp_path / f"a.json{compression}", packed(data, compression)))
    assert pairs(documents) == PAIRS
    assert rejects == []
    for document in documents:
        assert document.origin.offset is not None
        assert data[document.origin.offset :].startswith(b"{")
        assert document.origin.line == data.count(b"\n", 0, document.origin.offset) + 1


@pytest.mark.parametrize("indent", [None, 2])
def test_one_object(tmp_path: Path, indent: int | None) -> None:
    assert pairs(read(put(tmp_path / "a.json", json.dumps(ROWS[0], indent=indent)))[0]) == PAIRS[:1]


def test_json_lines_and_objects_one_after_the_other(tmp_path: Path) -> None:
    assert pairs(read(put(tmp_path / "a.json", json_lines(ROWS)))[0]) == PAIRS
    documents, rejects = read(put(tmp_path / "b.json", "\n".join(json.dumps(row, indent=1) for row in ROWS)))
    assert pairs(documents) == PAIRS
    assert rejects == []


@pytest.mark.parametrize(
    "bad",
    [
        b'{"id": 1 "text": 2}',
        b'{"id": "1", "text": "unterminated}',
        b'{"id": "1", "text": "\xff"}',
        b"[1]",
        b"17",
    ],
)
@pytest.mark.parametrize("at", [0, 2])
def test_a_bad_line_in_misnamed_json_lines(tmp_path: Path, bad: bytes, at: int) -> None:
    lines = json_lines(ROWS).splitlines()
    if bad == b"[1]" and at == 0:
        return  # a file that begins with a list is read as one
    lines.insert(at, bad)
    documents, rejects = read(put(tmp_path / "a.json", b"\n".join(lines)))
    assert pairs(documents) == PAIRS
    assert [reject.origin.line for reject in rejects] == [at + 1]


def test_a_list_under_a_key(tmp_path: Path) -> None:
    data = {
        "meta": {"records": [1], "x": "}]"},
        "n": 3,
        're"cords\\': ROWS,
        "after": [{"id": "no", "text": "no"}],
    }
    path = put(tmp_path / "a.json", json.dumps(data, indent=1))
    documents, rejects = read(path, records_field='re"cords\\')
    assert pairs(documents) == PAIRS
    assert rejects == []
    for wrong, words in (
        ("gone", "has no key 'gone'"),
        ("meta", "'meta' holds no list"),
        ("n", "'n' holds no list"),
    ):
        with pytest.raises(SourceError, match=words):
            read(path, records_field=wrong)


def test_a_plain_list_needs_no_key(tmp_path: Path) -> None:
    assert pairs(read(put(tmp_path / "a.json", json.dumps(ROWS)), records_field="records")[0]) == PAIRS


@pytest.mark.parametrize(
    "bad",
    [
        "3",
        "null",
        '"x"',
        "[1]",
        '{"id":"x","text":null}',
        '{"id":"x" "text":"x"}',
        "NaN",
        "nonsense",
        "{} {}",
        '{"id":"x","text":"a\nb"}',
    ],
)
def test_a_bad_element_is_one_reject(tmp_path: Path, bad: str) -> None:
    parts = [json.dumps(row) for row in ROWS]
    documents, rejects = read(put(tmp_path / "a.json", f"[{parts[0]}, {bad} ,{parts[1]}]"))
    assert pairs(documents) == PAIRS[:2]
    assert len(rejects) == 1
    assert rejects[0].origin.offset == len(parts[0]) + 3
    assert rejects[0].excerpt == bad


def test_bad_bytes_in_an_element(tmp_path: Path) -> None:
    documents, rejects = read(put(tmp_path / "a.json", b'[{"id":1,"text":"caf\xe9"},{"id":2,"text":"ok"}]'))
    assert pairs(documents) == [("2", "ok")]
    assert "byte 20 is 0xe9" in rejects[0].reason


@pytest.mark.parametrize("data", ["", " \n\n", "\ufeff"])
def test_nothing_is_one_reject(tmp_path: Path, data: str) -> None:
    documents, rejects = read(put(tmp_path / "a.json", data))
    assert documents == []
    assert "holds no JSON value" in rejects[0].reason


def test_an_empty_list_is_nothing(tmp_path: Path) -> None:
    assert read(put(tmp_path / "a.json", "[ ]\n")) == ([], [])
    assert read(put(tmp_path / "a.json", '{"r": []}'), records_field="r") == ([], [])


@pytest.mark.parametrize("tail", ["x", "]", "[", '{"id":"z","text":"z"}', "\0", ",1"])
def test_what_follows_the_list_is_told(tmp_path: Path, tail: str) -> None:
    documents, rejects = read(put(tmp_path / "a.json", json.dumps(ROWS) + "\n" + tail))
    assert pairs(documents) == PAIRS
    assert "was not read" in rejects[0].reason
    assert rejects[0].origin.line == 2


@pytest.mark.parametrize("form", ["list", "key", "lines"])
@pytest.mark.parametrize("compression", ["", ".gz"])
def test_truncated_at_every_length(tmp_path: Path, form: str, compression: str) -> None:
    plain = {
        "list": json.dumps(ROWS).encode(),
        "key": json.dumps({"a": 1, "r": ROWS}).encode()[:-1],
        "lines": json_lines(ROWS),
    }[form]
    data = packed(plain, compression)
    ends = (
        [match + 1 for match in range(len(plain)) if plain[: match + 1].endswith(b'"}]}}')]
        if compression == ""
        else []
    )
    for length in range(1, len(data)):
        try:
            documents, rejects = read(
                put(tmp_path / f"a.json{compression}", data[:length]),
                records_field="r" if form == "key" else None,
            )
        except SourceError:
            assert form == "key"
            continue
        assert pairs(documents) == PAIRS[: len(documents)]
        if not compression:
            assert len(documents) == sum(end <= length for end in ends)
        if compression or (form != "lines" and not (form == "key" and len(documents) == len(ROWS))):
            assert len(rejects) == 1


def test_a_long_list_takes_flat_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with path.open("w") as file:
        file.write("[")
        for number in range(25_000):
            file.write(("," if number else "") + json.dumps({"id": number, "text": "some text " * 20}))
        file.write("]")
    tracemalloc.start()
    assert sum(1 for _ in read_source(SourceConfig(path=str(path)))) == 25_000
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4_000_000 < path.stat().st_size


def test_a_record_over_the_limit_is_dropped_and_the_next_one_is_read() -> None:
    blocks = [b'[{"a": "' + b"x" * 50, b"x" * 80 + b'"}', b' , {"b": 1}]']
    scanner = Scanner(iter(blocks), limit_bytes=100)
    assert scanner.peek() == b"["
    scanner.skip()
    first = scanner.value()
    assert first.dropped
    assert first.whole
    assert scanner.peek() == b","
    scanner.skip()
    scanner.peek()
    assert scanner.value().data == b'{"b": 1}'


# ── as people have them ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("compression", ["", ".gz"])
def test_a_list_under_the_name_of_lines(tmp_path: Path, indent: int | None, compression: str) -> None:
    data = b"\xef\xbb\xbf\n" + json.dumps(ROWS, indent=indent).encode()
    documents, rejects = read(put(tmp_path / f"a.jsonl{compression}", packed(data, compression)))
    assert pairs(documents) == PAIRS
    assert rejects == []


@pytest.mark.parametrize("ending", [".json", ".jsonl"])
@pytest.mark.parametrize("indent", [None, 2])
def test_records_inside_an_object_come_with_the_setting(
    tmp_path: Path, ending: str, indent: int | None
) -> None:
    data = {"meta": [{"by": "x"}], "n": 2, "da ta": ROWS}
    path = put(tmp_path / f"a{ending}", json.dumps(data, indent=indent))
    documents, rejects = read(path)
    assert documents == []
    assert len(rejects) == 1
    assert 'set source.format: json and source.records_field: "da ta"' in rejects[0].reason
    assert pairs(read(path, format="json", records_field="da ta")[0]) == PAIRS


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"id": ["1"], "text": ["a"]}, "columns instead of rows"),
        ({"id": {"0": 1}, "text": {"0": "a"}}, "columns instead of rows"),
        ({"a": {"text": "x"}, "b": {"text": "y"}}, "records by their names"),
        ({"out": {"of": {"it": [{"id": 1}]}}}, "under 'it' in 'of' in 'out'"),
        ({"ID": "1", "text": "x"}, 'set source.id_field: "ID"'),
        ({"id": "1", "Text": "x"}, 'set source.text_field: "Text"'),
        ({"name": "1", "more": []}, "set source.id_field and source.text_field"),
    ],
)
@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_other_shapes_are_called_what_they_are(tmp_path: Path, data: object, words: str, ending: str) -> None:
    documents, rejects = read(put(tmp_path / f"a{ending}", json.dumps(data)))
    assert documents == []
    assert [words in reject.reason for reject in rejects] == [True], rejects


@pytest.mark.parametrize(
    "data",
    [
        {"id": ["007", "b"], "text": ["one", "two"]},
        {"id": {"0": "007", "1": "b"}, "text": {"0": "one", "1": "two"}},
        {"007": {"text": "one"}, "b": {"text": "two"}},
    ],
)
@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_the_remedy_for_columns_and_names_works(
    tmp_path: Path, data: object, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in brackets is Python, and what it writes is read."""
    monkeypatch.chdir(tmp_path)
    path = put(tmp_path / f"a{ending}", json.dumps(data))
    (reject,) = read(path)[1]
    begin = reject.reason.index("pandas.")
    said = reject.reason[begin : reject.reason.rindex(")")]
    eval(said, {"pandas": pandas, "FILE": str(path)})  # noqa: S307  # our own words
    documents, rejects = read(tmp_path / "rows.jsonl")
    assert (pairs(documents), rejects) == ([("007", "one"), ("b", "two")], [])


def test_the_remedies_for_records_in_an_object_work(tmp_path: Path) -> None:
    top = put(tmp_path / "top.json", json.dumps({"meta": {"n": 5}, "rows": ROWS}))
    (reject,) = read(top)[1]
    settings = dict(re.findall(r"source\.(\w+): (\S+)", reject.reason))
    documents, rejects = read(top, **{key: value.strip('"') for key, value in settings.items()})
    assert (pairs(documents), rejects) == (PAIRS, [])
    deep = put(tmp_path / "deep.json", json.dumps(held := {"data": {"rows": ROWS}}))
    (reject,) = read(deep)[1]
    below, above = re.findall(r"'(\w+)'", reject.reason.partition("under")[2])
    own = put(tmp_path / "own.json", json.dumps(held[above][below]))
    assert pairs(read(own)[0]) == PAIRS
