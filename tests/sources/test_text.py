"""Text files: one document each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.reading import packed, pairs, put, read


def test_ids_are_paths_below_what_was_given(tmp_path: Path) -> None:
    put(tmp_path / "docs/b.md", "# B\r\n")
    put(tmp_path / "docs/sub/a.txt", "\ufeffeins\x00\u2028zwei")
    put(tmp_path / "docs/empty.txt", "")
    expected = [("b.md", "# B\r\n"), ("empty.txt", ""), ("sub/a.txt", "eins\0\u2028zwei")]
    assert pairs(read(tmp_path / "docs")[0]) == expected
    assert pairs(read(tmp_path / "docs/**/*")[0]) == expected
    assert pairs(read(tmp_path / "docs/b.md")[0]) == expected[:1]
    assert pairs(read(f"{tmp_path}/*/b.md")[0]) == [("docs/b.md", "# B\r\n")]


def test_a_broken_file_rejects_only_itself(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", b"caf\xe9")
    put(tmp_path / "b.txt.gz", packed(b"text" * 1000, ".gz")[:-9])
    put(tmp_path / "c.txt.zst", packed(b"fine", ".zst"))
    documents, rejects = read(tmp_path)
    assert pairs(documents) == [("c.txt.zst", "fine")]
    assert [Path(reject.origin.file).name for reject in rejects] == ["a.txt", "b.txt.gz"]


def test_a_name_that_is_not_utf8_still_gives_an_id(tmp_path: Path) -> None:
    try:
        put(tmp_path / "caf\udce9.txt", "x")
    except OSError:
        pytest.skip("this filesystem refuses file names that are not UTF-8")
    document = read(tmp_path)[0][0]
    assert document.id == "caf\ufffd.txt"
    document.origin.file.encode()


def test_fields_are_absent(tmp_path: Path) -> None:
    assert dict(read(put(tmp_path / "a.txt", "x"), ["title"])[0][0].fields) == {}


def test_a_text_file_has_no_group(tmp_path: Path) -> None:
    documents, rejects = read(put(tmp_path / "a.txt", "x"), group_by="doc")
    assert documents == []
    assert "'doc' is missing" in rejects[0].reason
