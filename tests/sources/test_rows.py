"""The policy for one row: ids, texts, fields, surrogates, excerpts."""

from __future__ import annotations

import csv
import datetime
import decimal
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import SourceConfig
from pipeline.records import Document, Origin, Reject
from pipeline.sources import Valued, read_values
from pipeline.sources.rows import EXCERPT_CHARACTERS, Raw, Unreadable, excerpt, plain, to_document, wanted
from tests.sources.reading import json_lines, put, read

WHERE = Origin("f", 1)


def convert(*fields: str, **values: Any) -> Document | Reject:
    return to_document(Raw(WHERE, values), wanted(SourceConfig(path="f"), fields))


@pytest.mark.parametrize(
    ("value", "identity"),
    [
        ("a", "a"),
        (" ", " "),
        ("007", "007"),
        (7, "7"),
        (-3, "-3"),
        (2**70, str(2**70)),
        (1.0, "1"),
        (-0.0, "0"),
        (2.0**53 - 1, "9007199254740991"),
        (decimal.Decimal(5), "5"),
        (decimal.Decimal("5.00"), "5"),
        (decimal.Decimal("1E+2"), "100"),
        (decimal.Decimal("1.50"), "1.5"),
        (decimal.Decimal("7" * 5000), "7" * 5000),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (datetime.date(2024, 5, 6), "2024-05-06"),
        (datetime.datetime(2024, 5, 6, 7, 8, tzinfo=datetime.UTC), "2024-05-06T07:08:00+00:00"),
        (datetime.time(7, 8), "07:08:00"),
        ("\ud800x", "\ufffdx"),
    ],
)
def test_what_names_a_document(value: object, identity: str) -> None:
    document = convert(id=value, text="t")
    assert isinstance(document, Document)
    assert document.id == identity


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "a boolean"),
        (1.5, "1.5, a number"),
        (float("nan"), "nan, a number"),
        (float("inf"), "a number"),
        (2.0**53, "9007199254740992, a floating-point number too large"),
        (None, "null"),
        ([1], "a list"),
        ({"a": 1}, "an object"),
        ("", "empty"),
        (b"x", "bytes"),
        (decimal.Decimal("1E+999999999"), "a number"),
        (Unreadable("worn out"), "worn out"),
        (decimal.Decimal("NaN"), "a number"),
    ],
)
def test_nothing_else_is_an_id(value: object, words: str) -> None:
    rejected = convert(id=value, text="t")
    assert isinstance(rejected, Reject)
    assert "'id'" in rejected.reason
    assert words in rejected.reason


_IDS = [10, 7, 12]
_TEXTS = ["a", "b", "c", "d"]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".jsonl", ".json"])
@pytest.mark.parametrize("reader", ["source", "gold"])
def test_one_missing_id_changes_nothing_for_the_others(tmp_path: Path, ending: str, reader: str) -> None:
    """Then there are floats in the column, as pandas writes it, or reads it back."""
    found = []
    for ids in ([*_IDS, 3], [*map(float, _IDS), None]):
        path = tmp_path / f"{len(found)}{ending}"
        _write(path, ids)
        if reader == "source":
            found.append([document.id for document in read(path)[0]])
        else:
            rows = read_values(SourceConfig(path=str(path)))
            found.append([row.id for row in rows if isinstance(row, Valued)])
    assert found == [["10", "7", "12", "3"], ["10", "7", "12"]]


def _write(path: Path, ids: Sequence[float | None]) -> None:
    rows = [{"id": identity, "text": text} for identity, text in zip(ids, _TEXTS, strict=True)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": pa.array(ids), "text": _TEXTS}), path)
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, ["id", "text"], delimiter="," if path.suffix == ".csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_bytes(json_lines(rows) if path.suffix == ".jsonl" else json.dumps(rows).encode())


def test_columns_of_other_kinds_hold_ids(tmp_path: Path) -> None:
    day = datetime.date(2024, 5, 6)
    columns = {
        "day": pa.array([day], pa.date32()),
        "moment": pa.array([datetime.datetime.fromisoformat("2024-05-06T07:08")], pa.timestamp("us")),
        "price": pa.array([decimal.Decimal("12.00")], pa.decimal128(10, 2)),
        "uuid": pa.array([uuid.UUID(int=5).bytes], pa.uuid()),
        "text": pa.array(["t"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = {name: read(tmp_path / "a.parquet", id_field=name)[0][0].id for name in list(columns)[:-1]}
    assert found == {
        "day": "2024-05-06",
        "moment": "2024-05-06T07:08:00",
        "price": "12",
        "uuid": "00000000-0000-0000-0000-000000000005",
    }


def test_a_string_is_an_id_as_it_is(tmp_path: Path) -> None:
    """Versions, in a format that tells strings from numbers."""
    path = put(tmp_path / "a.jsonl", json_lines([{"id": "1.0", "text": "a"}, {"id": "1.10", "text": "b"}]))
    assert [document.id for document in read(path)[0]] == ["1.0", "1.10"]


def test_a_row_number_is_no_identity() -> None:
    rejected = convert(text="t")
    assert isinstance(rejected, Reject)
    assert "a row number alone is never an identity" in rejected.reason


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "null"), (3, "a number"), (["t"], "a list"), (b"t", "bytes"), (Unreadable("x"), "unreadable")],
)
def test_a_text_is_a_string(value: object, words: str) -> None:
    rejected = convert(id="a", text=value)
    assert isinstance(rejected, Reject)
    assert words in rejected.reason


def test_a_missing_text_is_a_reject_and_an_empty_one_a_document() -> None:
    assert isinstance(convert(id="a"), Reject)
    for text in ("", " \n"):
        document = convert(id="a", text=text)
        assert isinstance(document, Document)
        assert document.text == text


def test_lone_surrogates_never_reach_an_encoder() -> None:
    document = convert("f", "g", id="\udcff", text="a\ud83d b\U0001f600", f="\udfff", g=["\ud800"])
    assert isinstance(document, Document)
    assert (document.id, document.text) == ("\ufffd", "a\ufffd b\U0001f600")
    assert dict(document.fields) == {"f": "\ufffd", "g": '["\ufffd"]'}
    rejected = convert(id=None, text="\ud800")
    assert isinstance(rejected, Reject)
    rejected.excerpt.encode()


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (2.5, 2.5),
        (float("nan"), None),
        ("x", "x"),
        ([1, {"a": None}], '[1, {"a": null}]'),
        ({"a": [float("nan")]}, '{"a": [null]}'),
        (("é",), '["é"]'),
        (datetime.datetime(2024, 5, 6, 7, 8, tzinfo=datetime.UTC), "2024-05-06T07:08:00+00:00"),
        (datetime.date(2024, 5, 6), "2024-05-06"),
        (datetime.time(7, 8), "07:08:00"),
        (decimal.Decimal("1.50"), "1.50"),
        (b"a\xff", "a\\xff"),
        ([datetime.date(2024, 5, 6)], '["2024-05-06"]'),
    ],
)
def test_fields_become_plain_values(value: object, field: object) -> None:
    found = plain(value)
    assert found == field
    assert type(found) is type(field)


def test_only_the_named_fields_are_kept_and_missing_ones_stay_missing() -> None:
    document = convert("a", "null", "missing", id="i", text="t", a=1, null=None, b=object())
    assert isinstance(document, Document)
    assert dict(document.fields) == {"a": 1, "null": None}
    assert isinstance(convert("a", id="i", text="t", a=Unreadable("x")), Reject)


def test_excerpts_are_short_and_encodable() -> None:
    for shown in (b"\xff" * 5000, "x\ud800" * 5000, {"id": "i" * 10**6, "text": list(range(10**5))}):
        found = excerpt(shown)
        assert 0 < len(found) <= EXCERPT_CHARACTERS
        found.encode()
