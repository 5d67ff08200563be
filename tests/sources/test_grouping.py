"""Rows of a group become one document."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from pipeline.config import GroupConfig, SourceConfig
from pipeline.records import Document, Origin
from pipeline.sources.grouping import join_groups
from pipeline.sources.rows import Raw, wanted
from tests.sources.reading import json_lines, pairs, put, read


def test_consecutive_rows_are_joined_in_order(tmp_path: Path) -> None:
    rows = [
        {"doc": "a", "page": 10, "text": "ten", "title": "late"},
        {"doc": "a", "page": 9, "text": "nine", "title": "early"},
        {"doc": 7, "page": 1, "text": "only"},
        {"doc": "b", "page": 1.5, "text": "second"},
        {"doc": "b", "page": 1, "text": "first"},
    ]
    path = put(tmp_path / "a.jsonl", json_lines(rows))
    documents, rejects = read(
        path, ["title"], group_by={"field": "doc", "order_by": "page", "separator": " | "}
    )
    assert pairs(documents) == [("a", "nine | ten"), ("7", "only"), ("b", "first | second")]
    assert documents[0].fields["title"] == "early"
    assert documents[0].origin.line == 2
    assert rejects == []
    assert pairs(read(path, group_by="doc")[0]) == [
        ("a", "ten\n\nnine"),
        ("7", "only"),
        ("b", "second\n\nfirst"),
    ]


def test_page_numbers_in_csv_sort_as_numbers_and_other_text_as_text(tmp_path: Path) -> None:
    path = put(
        tmp_path / "a.csv", "doc,page,text\na,10,x\na,9,y\nb,ii,x\nb,1,y\nb,i,z\nc,5,first\nc,5,second\n"
    )
    documents, _ = read(path, group_by={"field": "doc", "order_by": "page", "separator": ""})
    assert pairs(documents) == [("a", "yx"), ("b", "yzx"), ("c", "firstsecond")]


def test_a_rejected_row_rejects_only_itself(tmp_path: Path) -> None:
    path = put(
        tmp_path / "a.jsonl",
        b'{"doc":"a","text":"1"}\nnonsense\n{"doc":"a","text":null}\n{"text":"x"}\n{"doc":"a","text":"2"}\n',
    )
    documents, rejects = read(path, group_by="doc")
    assert pairs(documents) == [("a", "1\n\n2")]
    assert [reject.origin.line for reject in rejects] == [2, 3, 4]


def test_a_group_that_comes_back_is_rejected_row_by_row(tmp_path: Path) -> None:
    path = put(
        tmp_path / "a.jsonl",
        json_lines({"doc": name, "text": f"{name}{at}"} for at, name in enumerate("aabbabbaacb")),
    )
    documents, rejects = read(path, group_by="doc")
    assert pairs(documents) == [("a", "a0\n\na1"), ("b", "b2\n\nb3"), ("c", "c9")]
    assert [reject.origin.line for reject in rejects] == [5, 6, 7, 8, 9, 11]
    assert all("comes back here; sort the source by 'doc'" in reject.reason for reject in rejects)


def test_a_row_without_its_place_in_the_order_is_a_reject(tmp_path: Path) -> None:
    pages: list[dict[str, object]] = [{}, {"page": None}, {"page": 1}, {"page": True}]
    rows = [{"doc": "a", "text": str(number), **page} for number, page in enumerate(pages, 1)]
    documents, rejects = read(
        put(tmp_path / "a.jsonl", json_lines(rows)), group_by={"field": "doc", "order_by": "page"}
    )
    assert pairs(documents) == [("a", "3")]
    assert [
        word in reject.reason for word, reject in zip(("missing", "null", "a boolean"), rejects, strict=True)
    ] == [True] * 3


def test_a_group_goes_on_in_the_next_file(tmp_path: Path) -> None:
    put(tmp_path / "1.jsonl", json_lines([{"doc": "a", "text": "1"}]))
    put(tmp_path / "2.jsonl", json_lines([{"doc": "a", "text": "2"}]))
    assert pairs(read(tmp_path, group_by="doc")[0]) == [("a", "1\n\n2")]


def test_many_groups_take_little_memory() -> None:
    config = SourceConfig(path="x", group_by=GroupConfig(field="doc"))

    def rows() -> Iterator[Raw]:
        for number in range(50_000):
            yield Raw(Origin("f", number + 1), {"doc": f"group number {number} of a long name", "text": "t"})

    tracemalloc.start()
    assert sum(isinstance(item, Document) for item in join_groups(rows(), wanted(config, ()), "")) == 50_000
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 50_000 * 200
