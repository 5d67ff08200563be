"""Datasets as folders: the records are meant, not what is written about them; splits are obeyed or
refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import SourceConfig
from pipeline.errors import SourceError
from pipeline.sources import source_remarks
from tests.sources.reading import json_lines, pairs, put, read


def row(name: str) -> bytes:
    return json_lines([{"id": name, "text": name}])


def ids(path: Path | str, **settings: str) -> list[str]:
    documents, rejects = read(path, **settings)
    assert rejects == []
    return [document.id for document in documents]


ABOUT = ("README.md", "LICENSE.txt", "dataset_infos.json", "sub/notes.md")


def test_what_is_about_the_records_is_left_out_and_told(tmp_path: Path) -> None:
    put(tmp_path / "data/a.jsonl", row("a"))
    for name in ABOUT:
        put(tmp_path / name, "{}")
    assert ids(tmp_path) == ids(tmp_path / "**") == ["a"]
    (remark,) = source_remarks(SourceConfig(path=str(tmp_path)))
    assert "README.md" in remark
    assert "name those themselves" in remark
    assert [pair[0] for pair in pairs(read([str(tmp_path), str(tmp_path / "README.md")])[0])] == [
        "a",
        "README.md",
    ]
    assert ids(tmp_path / "*.md") == ["README.md"]


def test_texts_alone_are_the_documents(tmp_path: Path) -> None:
    for name in ("README.md", "a.txt"):
        put(tmp_path / name, "x")
    assert ids(tmp_path) == ["README.md", "a.txt"]
    assert source_remarks(SourceConfig(path=str(tmp_path))) == []


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train.jsonl", "test.jsonl"),
        ("data/train-00000-of-00002.jsonl", "data/test-00000-of-00001.jsonl"),
        ("training/a.jsonl", "evaluation/a.jsonl"),
        ("my_train_set.jsonl", "my_test_set.jsonl"),
        ("a.train.jsonl.gz", "a.test.jsonl.gz"),
    ],
)
def test_splits_go_by_the_names_of_files_and_folders(tmp_path: Path, train: str, test: str) -> None:
    folder = tmp_path / "latest trainings"  # what was given says nothing
    put(folder / train, row("train"))
    put(folder / test, row("test"))
    put(folder / "README.md", "# Card")
    assert ids(folder, split="test") == ["test"]
    assert ids(folder, split="train") == ["train"]
    assert sorted(ids(folder)) == ["test", "train"]
    assert ids(folder / "**", split="test") == ["test"]


def test_splits_go_by_the_card_where_it_names_files(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        put(tmp_path / f"data/{name}.jsonl", row(name))
    card = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/one.jsonl
  - {split: test, path: ["data/t*.jsonl"]}
- config_name: small
  data_files: [{split: test, path: data/one.jsonl}]
---
# Card
"""
    put(tmp_path / "README.md", card)
    assert ids(tmp_path, split="train") == ["one"]
    assert ids(tmp_path, split="test") == ["three", "two"]
    assert ids(tmp_path, split="test", subset="small") == ["one"]


@pytest.mark.parametrize(
    "card", ["", "---\n: [\n---\n", "---\nconfigs: 3\n---\n", "---\nconfigs: [{data_files: 3}]\n---\n"]
)
@pytest.mark.parametrize("split", ["test", "dev", "everything"])
def test_a_split_without_effect_is_refused(tmp_path: Path, split: str, card: str) -> None:
    put(tmp_path / "a.jsonl", row("a"))
    put(tmp_path / "latest.jsonl", row("b"))
    put(tmp_path / "README.md", card)
    for path in (tmp_path, tmp_path / "a.jsonl", tmp_path / "*.jsonl"):
        with pytest.raises(SourceError, match=f"source.split: {split} has no effect"):
            read(path, split=split)
