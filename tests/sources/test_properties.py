"""Any rows come back exactly; any bytes end in documents, rejects or one SourceError, and good rows before a
fault are never lost.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.errors import SourceError
from tests.sources.reading import json_lines, packed, pairs, put, read

Rows = list[tuple[str, str]]
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
rows = st.lists(st.tuples(words.filter(bool), words), min_size=1, max_size=12)
# Bytes that mean something to a reader come more often than chance would have it.
pieces = st.sampled_from(
    [
        b'"',
        b",",
        b"\n",
        b"\r",
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b"\\",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\xe9",
        b'{"id":"a","text":"b"}',
        b"id,text",
        b'"id"',
        b'""',
    ]
)
junk = st.one_of(st.binary(max_size=60), st.lists(pieces, max_size=20).map(b"".join))
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def as_jsonl(data: Rows) -> bytes:
    return json_lines({"id": identity, "text": text} for identity, text in data)


def as_json(data: Rows) -> bytes:
    return json.dumps(
        [{"id": identity, "text": text} for identity, text in data], ensure_ascii=False
    ).encode()


def as_table(delimiter: str) -> Callable[[Rows], bytes]:
    def write(data: Rows) -> bytes:
        out = io.StringIO(newline="")
        writer = csv.writer(out, delimiter=delimiter)
        writer.writerows([("id", "text"), *data])
        return out.getvalue().encode()

    return write


def as_parquet(data: Rows) -> bytes:
    out = io.BytesIO()
    pq.write_table(
        pa.table({"id": [identity for identity, _ in data], "text": [text for _, text in data]}),
        out,
        row_group_size=5,
    )
    return out.getvalue()


def read_bytes(name: str, data: bytes, **further: Any) -> tuple[Rows, int]:
    """(documents, number of rejects) of a file of these bytes."""
    with tempfile.TemporaryDirectory() as folder:
        documents, rejects = read(put(Path(folder) / name, data), **further)
    for reject in rejects:
        assert reject.reason
        assert len(reject.excerpt) <= 200
        (reject.reason + reject.excerpt).encode()
    for document in documents:
        (document.id + document.text).encode()
    return pairs(documents), len(rejects)


WRITERS: dict[str, Callable[[Rows], bytes]] = {
    "a.jsonl": as_jsonl,
    "a.json": as_json,
    "a.csv": as_table(","),
    "a.tsv": as_table("\t"),
    "a.parquet": as_parquet,
    "a.jsonl.gz": lambda data: packed(as_jsonl(data), ".gz"),
    "a.csv.gz": lambda data: packed(as_table(",")(data), ".gz"),
    "a.json.zst": lambda data: packed(as_json(data), ".zst"),
}


@pytest.mark.parametrize("name", WRITERS)
@given(data=rows)
@quick
def test_rows_come_back_exactly(name: str, data: Rows) -> None:
    assert read_bytes(name, WRITERS[name](data)) == (data, 0)


@pytest.mark.parametrize(
    "name",
    ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.txt", "a.parquet", "a.jsonl.gz", "a.csv.zst", "a.json.gz"],
)
@given(data=junk)
@settings(quick, max_examples=150)
def test_any_bytes_are_read_without_an_error(name: str, data: bytes) -> None:
    read_bytes(name, data)
    if name.startswith("a.json"):
        try:
            read_bytes(name, data, records_field="id")
        except SourceError as error:
            assert "records_field" in str(error)  # noqa: PT017 - most bytes raise nothing


@given(data=rows, fault=junk, after=rows)
@example(data=[], fault=b"id,text\nno record", after=[("1", "a")])
@quick
def test_json_lines_around_a_fault_are_never_lost(data: Rows, fault: bytes, after: Rows) -> None:
    found, rejected = read_bytes("a.jsonl", as_jsonl(data) + fault + b"\n" + as_jsonl(after))
    assert found[: len(data)] == data
    assert found[len(found) - len(after) :] == after
    assert (len(found) - len(data) - len(after)) + rejected <= fault.count(b"\n") + 1


@given(data=rows, fault=junk)
@example(data=[("0", "")], fault=b"id,text")
@quick
def test_elements_before_a_fault_are_never_lost(data: Rows, fault: bytes) -> None:
    found, _ = read_bytes("a.json", as_json(data)[:-1] + b"," + fault)
    assert found[: len(data)] == data


@given(data=rows, fault=junk)
@quick
def test_csv_rows_before_a_fault_are_never_lost(data: Rows, fault: bytes) -> None:
    found, _ = read_bytes("a.csv", as_table(",")(data) + fault)
    assert found[: len(data)] == data


@pytest.mark.parametrize("kind", [".gz", ".zst"])
@pytest.mark.parametrize("form", ["a.jsonl", "a.json", "a.csv"])
@given(data=rows, cut=st.floats(0, 1, exclude_max=True))
@quick
def test_a_cut_never_gives_a_row_that_was_not_there(kind: str, form: str, data: Rows, cut: float) -> None:
    whole = packed(WRITERS[form](data), kind)
    found, rejected = read_bytes(form + kind, whole[: int(len(whole) * cut)])
    assert found == data[: len(found)]
    assert rejected == 1


@pytest.mark.parametrize("name", WRITERS)
@given(data=rows, places=st.lists(st.integers(0, 10**6), min_size=1, max_size=4), flip=st.integers(1, 255))
@quick
def test_flipped_bytes_never_raise(name: str, data: Rows, places: list[int], flip: int) -> None:
    damaged = bytearray(WRITERS[name](data))
    for place in places:
        damaged[place % len(damaged)] ^= flip
    read_bytes(name, bytes(damaged))


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(WRITERS))
@given(data=rows, fault=st.binary(max_size=400), at=st.floats(0, 1))
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_bytes_put_anywhere_never_raise(name: str, data: Rows, fault: bytes, at: float) -> None:
    whole = WRITERS[name](data)
    place = int(len(whole) * at)
    read_bytes(name, whole[:place] + fault + whole[place:])


@pytest.mark.full
@pytest.mark.timeout(1800)
@given(data=rows, level=st.integers(1, 9), members=st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_truncated_at_every_length(data: Rows, level: int, members: int) -> None:
    lines = as_jsonl(data)
    for whole in (gzip.compress(lines, level), zstandard.ZstdCompressor(level=level).compress(lines)):
        name = "a.jsonl.gz" if whole[:2] == b"\x1f\x8b" else "a.jsonl.zst"
        for length in range(len(whole)):
            found, rejected = read_bytes(name, whole * (members - 1) + whole[:length])
            assert found == data * (members - 1) + data[: len(found) - len(data) * (members - 1)]
            assert rejected == (0 if length == 0 and members > 1 else 1)
