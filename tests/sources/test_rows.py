"""The policy for one row: ids, texts, fields, surrogates, excerpts."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest

from pipeline.config import SourceConfig
from pipeline.records import Document, Origin, Reject
from pipeline.sources.rows import EXCERPT_CHARACTERS, Raw, Unreadable, excerpt, plain, to_document, wanted

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
        (decimal.Decimal(5), "5"),
        ("\ud800x", "\ufffdx"),
    ],
)
def test_strings_and_integers_are_ids(value: object, identity: str) -> None:
    document = convert(id=value, text="t")
    assert isinstance(document, Document)
    assert document.id == identity


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "a boolean"),
        (1.0, "a number"),
        (None, "null"),
        ([1], "a list"),
        ({"a": 1}, "an object"),
        ("", "empty"),
        (b"x", "bytes"),
        (decimal.Decimal("1.5"), "a number"),
        (Unreadable("worn out"), "worn out"),
        (decimal.Decimal("NaN"), "a number"),
    ],
)
def test_nothing_else_is_an_id(value: object, words: str) -> None:
    rejected = convert(id=value, text="t")
    assert isinstance(rejected, Reject)
    assert "'id'" in rejected.reason
    assert words in rejected.reason


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
