"""JSON lines: every fault costs its own line."""

from __future__ import annotations

import time
from pathlib import Path

from tests.sources.reading import json_lines, packed, pairs, put, read


def lines(tmp_path: Path, *parts: bytes) -> Path:
    return put(tmp_path / "a.jsonl", b"".join(parts))


def test_each_kind_of_bad_line_is_one_reject_with_its_place(tmp_path: Path) -> None:
    good = [b'{"id": "%d", "text": "good"}\n' % number for number in range(8)]
    bad = [
        (b'{"id": "x", "text": "unterminated}\n', "not valid JSON"),
        (b'{"id": "x", "text": "caf\xe9"}\n', "not UTF-8"),
        (b'["id", "text"]\n', "is a list"),
        (b'{"id": "x"}\n', "'text' is missing"),
        (b'{"id": "x", "text": null}\n', "'text' is null"),
        (b'{"id": "x", "text": 5}\n', "'text' is a number"),
        (b'{"text": "no id"}\n', "'id' is missing"),
        (b"[" * 200_000 + b"\n", "nested too deeply"),
    ]
    data = [part for pair in zip(good, (line for line, _ in bad), strict=True) for part in pair]
    documents, rejects = read(lines(tmp_path, *data))
    assert [document.id for document in documents] == [str(number) for number in range(8)]
    assert len(rejects) == len(bad)
    for index, (reject, (line, words)) in enumerate(zip(rejects, bad, strict=True)):
        assert words in reject.reason
        assert reject.origin.line == 2 * index + 2
        assert reject.origin.offset == len(b"".join(data[: 2 * index + 1]))
        assert reject.excerpt == line[:200].decode("utf-8", "replace").rstrip("\n")


def test_what_only_looks_like_a_line_end_is_content(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d\x7fe"  # raw in the file: JSON escapes only what is below U+0020
    assert pairs(read(lines(tmp_path, json_lines([{"id": "1", "text": text}])))[0]) == [("1", text)]


def test_marks_line_ends_blank_lines_and_no_final_newline(tmp_path: Path) -> None:
    path = lines(
        tmp_path,
        b'\xef\xbb\xbf{"id":1,"text":"a"}\r\n',
        b"\r\n \t\n",
        b'  {"id":2,"text":"b\\r\\n"}\n',
        b'{"id":3,"text":"c"}',
    )
    documents, rejects = read(path)
    assert pairs(documents) == [("1", "a"), ("2", "b\r\n"), ("3", "c")]
    assert [document.origin.line for document in documents] == [1, 4, 5]
    assert rejects == []


def test_zero_bytes(tmp_path: Path) -> None:
    path = lines(
        tmp_path,
        b'{"id":1,"text":"a\\u0000b"}\n',
        b'{"id":2,"text":"a\0b"}\n',
        bytes(5000) + b"\n",
        b'{"id":3,"text":"c"}\n',
    )
    documents, rejects = read(path)
    assert pairs(documents) == [("1", "a\0b"), ("3", "c")]
    assert [reject.origin.line for reject in rejects] == [2, 3]


def test_lone_surrogates_are_accepted_and_encodable(tmp_path: Path) -> None:
    documents, rejects = read(lines(tmp_path, b'{"id":"\\ud800","text":"x\\udc00y \\ud83d\\ude00"}\n'))
    assert pairs(documents) == [("\ufffd", "x\ufffdy \U0001f600")]
    assert rejects == []


def test_other_columns_break_nothing(tmp_path: Path) -> None:
    odd = [
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"9" * 5000,
        b'{"a":[1,{}]}',
        b'"2024-01-01"',
        b"null",
        b'"\\ud800"',
    ]
    path = lines(
        tmp_path, *(b'{"id":%d,"text":"t","x":%s}\n' % (number, value) for number, value in enumerate(odd))
    )
    assert len(read(path)[0]) == len(odd)
    documents, rejects = read(path, ["x"])
    assert rejects == []
    assert [document.fields["x"] for document in documents] == [
        None,
        float("-inf"),
        float("inf"),
        "9" * 5000,
        '{"a": [1, {}]}',
        "2024-01-01",
        None,
        "\ufffd",
    ]


def test_an_integer_id_of_any_length(tmp_path: Path) -> None:
    assert read(lines(tmp_path, b'{"id":%s,"text":"t"}' % (b"9" * 5000)))[0][0].id == "9" * 5000


def test_other_names_of_id_and_text(tmp_path: Path) -> None:
    path = lines(tmp_path, b'{"key":1,"body":"t","id":null,"text":3}\n')
    assert pairs(read(path, id_field="key", text_field="body")[0]) == [("1", "t")]


def test_a_line_of_fifty_megabytes_does_not_stall(tmp_path: Path) -> None:
    text = 'a\n"b" ' * 8_400_000
    path = lines(
        tmp_path,
        b'{"id":1,"text":"before"}\n',
        json_lines([{"id": 2, "text": text}]),
        b'{"id":3,"text":"after"}\n',
    )
    started = time.monotonic()
    documents, rejects = read(path)
    assert time.monotonic() - started < 20
    assert rejects == []
    assert [len(document.text) for document in documents] == [6, len(text), 5]


def test_a_torn_last_line_is_only_the_files_reject(tmp_path: Path) -> None:
    data = packed(b'{"id":1,"text":"a"}\n{"id":2,"text":"b"}', ".gz")
    documents, rejects = read(put(tmp_path / "a.jsonl.gz", data[:-6]))  # all data, half of the checksum
    assert [document.id for document in documents] == ["1", "2"]
    assert len(rejects) == 1


def test_no_bytes_are_no_rows(tmp_path: Path) -> None:
    assert read(lines(tmp_path, b"")) == ([], [])
