"""Parquet: needed columns, odd types, damage."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.sources.reading import pairs, put, read


def write(path: Path, columns: dict[str, Any], **settings: Any) -> Path:
    pq.write_table(pa.table(columns), path, **settings)
    return path


def test_rows_in_order_over_row_groups(tmp_path: Path) -> None:
    ids = list(range(1000))
    path = write(
        tmp_path / "a.parquet",
        {"id": ids, "text": [f"é\0{number}" for number in ids], "x": [[1]] * 1000},
        row_group_size=150,
    )
    documents, rejects = read(path)
    assert rejects == []
    assert pairs(documents) == [(str(number), f"é\0{number}") for number in ids]
    assert [document.origin.line for document in documents] == list(range(1, 1001))


@pytest.mark.parametrize(
    "text",
    [
        pa.array(["a", "b"], pa.large_string()),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array(["a", "b"], pa.string_view()),
    ],
)
def test_kinds_of_strings(tmp_path: Path, text: Any) -> None:
    assert pairs(read(write(tmp_path / "a.parquet", {"id": ["1", "2"], "text": text}))[0]) == [
        ("1", "a"),
        ("2", "b"),
    ]


@pytest.mark.parametrize(
    ("column", "ids"),
    [
        (pa.array([1, None], pa.int8()), ["1"]),
        (pa.array([2**64 - 1, 0], pa.uint64()), [str(2**64 - 1), "0"]),
        (pa.array([decimal.Decimal(10**20), None], pa.decimal128(30, 0)), [str(10**20)]),
        (pa.array([1.0, 2.5]), ["1"]),
        (pa.array([True, False]), []),
        (pa.array([["a"], None]), []),
        (pa.array([b"a", b"b"]), []),
    ],
)
def test_kinds_of_ids(tmp_path: Path, column: Any, ids: list[str]) -> None:
    documents, rejects = read(write(tmp_path / "a.parquet", {"id": column, "text": ["a", "b"]}))
    assert [document.id for document in documents] == ids
    assert len(rejects) == 2 - len(ids)


def test_kinds_of_fields(tmp_path: Path) -> None:
    moment = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    columns = {
        "id": ["1"],
        "text": ["t"],
        "when": [moment],
        "day": [moment.date()],
        "nan": [float("nan")],
        "price": [decimal.Decimal("1.50")],
        "nested": [{"a": [1, None]}],
        "far": pa.array([2**60], pa.timestamp("ms")),
        "nano": pa.array([1], pa.timestamp("ns")),
    }
    documents, rejects = read(
        write(tmp_path / "a.parquet", columns), [name for name in columns if name not in ("id", "text")]
    )
    fields = documents[0].fields
    assert rejects == []
    assert (fields["day"], fields["nan"], fields["price"], fields["nested"]) == (
        "2024-05-06",
        None,
        "1.50",
        '{"a": [1, null]}',
    )
    assert str(fields["when"]).startswith("2024-05-06T07:08:09")
    assert str(fields["nano"]).startswith("1970-01-01T00:00:00.000000001")
    assert isinstance(fields["far"], str)


def test_bad_bytes_in_a_string_column_cost_their_row(tmp_path: Path) -> None:
    text = pa.array([b"good", b"caf\xe9", b"fine"]).cast(pa.binary())
    raw = pa.StringArray.from_buffers(3, text.buffers()[1], text.buffers()[2])
    documents, rejects = read(write(tmp_path / "a.parquet", {"id": ["1", "2", "3"], "text": raw}))
    assert pairs(documents) == [("1", "good"), ("3", "fine")]
    assert "not UTF-8" in rejects[0].reason


def test_a_missing_or_doubled_column_is_the_files_reject(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"id": ["1"], "body": ["t"]})
    pq.write_table(
        pa.Table.from_arrays([pa.array(["1"])] * 3, ["id", "text", "text"]), tmp_path / "b.parquet"
    )
    write(tmp_path / "c.parquet", {"id": ["1"], "text": ["t"]})
    documents, rejects = read(tmp_path, ["absent"])
    assert [dict(document.fields) for document in documents] == [{}]
    assert [
        "'text' (columns: 'id', 'body')" in rejects[0].reason,
        "more than one column 'text'" in rejects[1].reason,
    ] == [True, True]


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_truncated_file_is_one_reject(tmp_path: Path, keep: int) -> None:
    data = write(tmp_path / "whole", {"id": ["1"] * 500, "text": ["t"] * 500}).read_bytes()
    documents, rejects = read(
        put(tmp_path / "a.parquet", data[:keep] if keep >= 0 else data[: len(data) - 5])
    )
    assert documents == []
    assert len(rejects) == 1
    assert "not a readable Parquet file" in rejects[0].reason


def test_a_damaged_page_gives_the_rows_before_it_and_the_other_row_groups(tmp_path: Path) -> None:
    ids = [f"{number:06}" for number in range(3000)]
    texts = [f"{number * 7919 % 100003:06}" for number in range(3000)]
    path = write(
        tmp_path / "a.parquet",
        {"id": ids, "text": texts},
        row_group_size=1000,
        data_page_size=1024,
        write_batch_size=50,
        use_dictionary=False,
        compression="snappy",
        write_page_checksum=False,
    )
    column = pq.ParquetFile(path).metadata.row_group(1).column(1)
    at = column.data_page_offset + column.total_compressed_size * 6 // 10
    data = bytearray(path.read_bytes())
    data[at : at + 300] = b"\xff" * 300
    path.write_bytes(data)
    documents, rejects = read(path)
    found = [document.id for document in documents]
    assert found[:1000] == ids[:1000]
    assert found[-1000:] == ids[2000:]
    assert 300 < len(found) - 2000 < 700
    assert found[1000:-1000] == ids[1000 : len(found) - 1000]
    assert f"rows {len(found) - 1000 + 1} to 2000" in rejects[0].reason
    assert len(rejects) == 1


def test_over_another_filesystem(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    try:
        memory.pipe("/pq/a.parquet", write(tmp_path / "a.parquet", {"id": ["1"], "text": ["t"]}).read_bytes())
        assert pairs(read("memory://pq/*.parquet")[0]) == [("1", "t")]
    finally:
        memory.rm("/pq", recursive=True)
