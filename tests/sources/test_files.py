"""Which files a path means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pipeline.config import SourceConfig
from pipeline.errors import SourceError
from pipeline.sources import read_source, source_files, source_remarks
from tests.sources.reading import json_lines, packed, pairs, put, read

ROW = json_lines([{"id": "a", "text": "t"}])


def files(path: Path | str | list[str], **settings: Any) -> list[str]:
    return source_files(SourceConfig(path=path if isinstance(path, list) else str(path), **settings))


def test_a_folder_is_read_recursively_sorted_and_without_hidden_files(tmp_path: Path) -> None:
    hidden = ("._b.jsonl", ".DS_Store", "a/.hidden/x.jsonl", ".git/x.txt")
    for name in ("b.jsonl", "a/z.csv", "a/y.json.gz", "notes.pdf", "UP.JSONL", *hidden):
        put(tmp_path / name, ROW)
    found = [os.path.relpath(file, tmp_path) for file in files(tmp_path)]
    assert found == ["UP.JSONL", "a/y.json.gz", "a/z.csv", "b.jsonl"]


def test_other_endings_are_told_and_refused_when_nothing_is_left(tmp_path: Path) -> None:
    put(tmp_path / "a.pdf", b"")
    put(tmp_path / "b.pdf", b"")
    with pytest.raises(SourceError, match=r"holds no file that can be read; found \.pdf \(2\)"):
        files(tmp_path)
    put(tmp_path / "c.jsonl", ROW)
    assert len(files(tmp_path)) == 1
    remarks = source_remarks(SourceConfig(path=str(tmp_path)))
    assert remarks == [f"{tmp_path}: 2 files left out by the ending of the name: .pdf (2)"]


@pytest.mark.parametrize("path", ["gone.jsonl", "gone/*.jsonl", "empty", "unknown-protocol://x/y.jsonl"])
def test_what_is_not_there_is_refused_with_a_sentence(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    place = path if "://" in path else str(tmp_path / path)
    with pytest.raises(SourceError) as caught:
        list(read_source(SourceConfig(path=place)))
    assert place in str(caught.value)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(SourceError, match="is empty"):
        files([])


def test_an_unknown_extension_is_refused_unless_the_format_is_given(tmp_path: Path) -> None:
    file = put(tmp_path / "data.bin", ROW)
    with pytest.raises(SourceError, match=r"known are \.jsonl"):
        files(file)
    assert pairs(read(file, format="jsonl")[0]) == [("a", "t")]
    with pytest.raises(SourceError, match=r"source\.format is jsonl"):
        files(tmp_path, format="jsonl")
    assert files(tmp_path / "*.bin", format="jsonl") == [str(file)]


@pytest.mark.parametrize(
    ("name", "compression"), [("data.jsonl.gz", ".gz"), ("data.NDJSON.ZST", ".zst"), ("a.b.jsonl", "")]
)
def test_endings_tell_format_and_compression(tmp_path: Path, name: str, compression: str) -> None:
    assert pairs(read(put(tmp_path / name, packed(ROW, compression)))[0]) == [("a", "t")]


def test_globs_leave_hidden_files_out_and_sort(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", ".c.jsonl", "sub/d.jsonl", "x.jsonl/inner.txt"):
        put(tmp_path / name, ROW)
    assert files(tmp_path / "*.jsonl") == [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    assert files(tmp_path / "**" / "d.*") == [str(tmp_path / "sub/d.jsonl")]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    file = put(tmp_path / "part[1].jsonl", ROW)
    put(tmp_path / "part1.jsonl", ROW)
    assert files(file) == [str(file)]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    file = put(tmp_path / "a.jsonl", ROW)
    documents, rejects = read([str(file), str(tmp_path), str(tmp_path / "*.jsonl")])
    assert (len(documents), rejects) == (1, [])


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    put(tmp_path / "real/a.jsonl", ROW)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/link").symlink_to(tmp_path / "real")
    (tmp_path / "real/back").symlink_to(tmp_path / "tree")
    (tmp_path / "tree/gone.jsonl").symlink_to(tmp_path / "nowhere")
    documents, rejects = read(tmp_path / "tree")
    assert len(documents) == 1
    assert ["gone.jsonl" in reject.origin.file for reject in rejects] == [True]


def test_relative_paths_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "data/a.jsonl", ROW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (
        files("data")
        == files("~/data")
        == files("data/*")
        == files(f"file://{tmp_path}/data")
        == [str(tmp_path / "data/a.jsonl")]
    )
    assert next(iter(read("data")[0])).origin.file == "data/a.jsonl"


def test_other_filesystems(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    try:
        memory.pipe(
            {
                "/box/b.jsonl.gz": packed(ROW, ".gz"),
                "/box/sub/a.txt": b"hello",
                "/box/.x/c.txt": b"no",
                "/box/d.bin": b"",
            }
        )
        documents, rejects = read(["memory://box", "memory://box/sub"])
        assert pairs(documents) == [("a", "t"), ("a.txt", "hello")]
        assert rejects == []
        assert documents[0].origin.file == "memory:///box/b.jsonl.gz"
        assert files("memory://box") == ["memory:///box/b.jsonl.gz"]
        assert pairs(read("memory://box/**/*.txt")[0]) == [("sub/a.txt", "hello")]
        assert pairs(read("memory://box/b.jsonl.gz")[0]) == [("a", "t")]
        with pytest.raises(SourceError, match="nothing is at"):
            read("memory://elsewhere")
    finally:
        memory.rm("/box", recursive=True)


def test_an_unreadable_file_is_its_own_reject(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", ROW)
    (tmp_path / "b.jsonl").symlink_to("/proc/self/mem")  # opens, but reading it at 0 is an input/output error
    put(tmp_path / "c.jsonl", ROW)
    documents, rejects = read(tmp_path)
    assert len(documents) == 2
    assert [reject.origin.file for reject in rejects] == [str(tmp_path / "b.jsonl")]
    assert "cannot be read" in rejects[0].reason
