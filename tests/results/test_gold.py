"""Rows of gold files are used, or counted with the reason; several files add up."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas
import pytest

from pipeline.errors import EXIT_USAGE, UsageError
from pipeline.results.gold import read_gold
from pipeline.stores.ledger.ledger import Ledger
from pipeline.tasks.label.label_names import label_meant

LABELS = ("café", "world", "STRASSE")


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_several_files_add_up(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", [{"id": "1", "label": "world"}])
    two = write(tmp_path / "b.jsonl", [{"id": "2", "label": "café"}, {"id": "1", "label": "world"}])
    assert read_gold([one, two], LABELS) == {"1": "world", "2": "café"}


def test_the_same_document_with_two_labels_is_listed_with_both(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", [{"id": "1", "label": "world"}])
    two = write(tmp_path / "b.jsonl", [{"id": "1", "label": "café"}])
    with pytest.raises(UsageError, match=r"different labels to the same document: '1' \(world, café\)"):
        read_gold([one, two], LABELS)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("World", "world"),
        ("cafe\u0301", "café"),
        ("CAFE\u0301", "café"),
        ("ｗｏｒｌｄ", "world"),
        ("straße", "STRASSE"),
        ("worlds", None),
    ],
)
def test_labels_that_look_alike_are_alike(written: str, meant: str | None) -> None:
    assert label_meant(written, LABELS) == meant
    assert label_meant(written, (*LABELS, written)) == written  # the very label first


def test_labels_that_are_numbers_are_named_as_tables_write_them(tmp_path: Path) -> None:
    """pandas makes 1.0 of 1 where another label is missing; a label that is called 1.0 stays that."""
    stars = ("1", "2", "3.5")
    table = tmp_path / "gold.csv"
    pandas.DataFrame({"id": [1, 2, None], "label": [1, None, 2]}).to_csv(table, index=False)
    assert table.read_text() == "id,label\n1.0,1.0\n2.0,\n,2.0\n"
    assert read_gold([table], stars) == {"1": "1"}
    numbers = tmp_path / "gold.parquet"
    pandas.DataFrame({"id": [1, 2], "label": [2.0, 3.5]}).to_parquet(numbers)
    lines = write(tmp_path / "gold.jsonl", [{"id": "3", "label": 1}, {"id": "4", "label": 2.0}])
    assert read_gold([numbers, lines], stars) == {"1": "2", "2": "3.5", "3": "1", "4": "2"}
    assert read_gold([lines], ("1", "2", "2.0")) == {"3": "1", "4": "2.0"}


def test_rows_that_give_no_label_are_counted_with_their_place(tmp_path: Path) -> None:
    path = write(
        tmp_path / "g.jsonl",
        [
            {"id": "1", "label": "World"},
            {"id": "2", "label": ""},
            {"id": "3"},
            {"label": "world"},
            "{broken",
            {"id": "4", "label": None},
        ],
    )
    gold = read_gold([path], LABELS)
    assert gold == {"1": "world"}
    assert sum(gold.unused.values()) == 5
    told = "\n".join(gold.told())
    assert "2 rows of gold files not used: without a label" in told
    assert "the field 'label' is missing (first: " in told
    assert "line 3)" in told
    assert "the id field 'id' is missing" in told


def test_one_of_several_files_without_a_label_is_named(tmp_path: Path) -> None:
    good = write(tmp_path / "a.jsonl", [{"id": "1", "label": "world"}])
    other = write(tmp_path / "b.jsonl", [{"id": "2", "category": "world"}])
    with pytest.raises(UsageError, match=r"b\.jsonl holds no gold labels.*the field 'label' is missing"):
        read_gold([good, other], LABELS)


def test_reviewed_documents_are_no_random_sample(tmp_path: Path) -> None:
    review = tmp_path / "r.csv"
    review.write_text("id,label,text,proposed_label\n1,world,x,café\n2,café,y,café\n")
    sample = tmp_path / "s.csv"
    sample.write_text("id,label,text,reason\n3,world,x,one of all documents\n")
    chosen = read_gold([review], LABELS)
    assert "no random sample" in chosen.no_sample(chosen.keys())
    both = read_gold([review, sample], LABELS)
    assert both.no_sample(both.keys()) == ""
    assert read_gold([sample], LABELS).no_sample({"3"}) == ""


def test_a_ledger_of_a_later_format_is_a_usage_error_that_names_its_version(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path, write=True) as ledger:
        ledger.begin_run({"versions": {"overnight": "7.1.0"}})
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE meta SET value = '99' WHERE name = 'format'")
    for write_too in (True, False):
        with pytest.raises(UsageError, match=r"format 99, written by overnight 7\.1\.0; this is") as caught:
            Ledger.open(path, write=write_too)
        assert caught.value.exit_code == EXIT_USAGE
        assert "which reads format" in str(caught.value)
