"""Contents that contradict the name: read where that is plain, else a sentence that helps; never iconv."""

from __future__ import annotations

import bz2
import io
import lzma
import pickle
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from pipeline.config import SourceConfig
from pipeline.errors import SourceError
from pipeline.sources import Valued, read_values, source_files
from tests.sources.reading import json_lines, packed, pairs, put, read

ROWS = [("1", "a"), ("2", "b, c")]
LINES = json_lines({"id": identity, "text": text} for identity, text in ROWS)
TABLE = b'id,text\n1,a\n2,"b, c"\n'
TEXT = "Ein Text für sich.\n".encode()
CONTENTS = {
    ".jsonl": LINES,
    ".json": LINES,
    ".csv": TABLE,
    ".tsv": b"id\ttext\n1\ta\n2\tb, c\n",
    ".txt": TEXT,
}


def parquet(folder: Path) -> bytes:
    names, texts = zip(*ROWS, strict=True)
    pq.write_table(pa.table({"id": names, "text": texts}), folder / "made")
    return (folder / "made").read_bytes()


@pytest.mark.parametrize("ending", CONTENTS)
@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_what_is_packed_is_unpacked_whatever_its_name(tmp_path: Path, ending: str, packing: str) -> None:
    expected = pairs(read(put(tmp_path / "plain" / f"a{ending}", CONTENTS[ending]))[0])
    for name in (f"a{ending}", f"a{ending}{'.zst' if packing == '.gz' else '.gz'}"):
        documents, rejects = read(put(tmp_path / name, packed(CONTENTS[ending], packing)))
        assert [text for _, text in pairs(documents)] == [text for _, text in expected]
        assert rejects == []


@pytest.mark.parametrize("ending", CONTENTS)
@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_what_only_says_that_it_is_packed_is_read(tmp_path: Path, ending: str, packing: str) -> None:
    documents, rejects = read(put(tmp_path / f"a{ending}{packing}", CONTENTS[ending]))
    assert documents
    assert rejects == []


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".json", ".txt", ".jsonl.gz"])
def test_parquet_is_read_whatever_its_name(tmp_path: Path, ending: str) -> None:
    assert pairs(read(put(tmp_path / f"a{ending}", parquet(tmp_path)))[0]) == ROWS


def test_a_gold_file_is_looked_into_alike(tmp_path: Path) -> None:
    path = put(tmp_path / "gold.csv", packed(b"id,label\n1,x\n", ".gz"))
    assert list(read_values(SourceConfig(path=str(path), text_field="label"))) == [Valued("1", "x", {})]


def zipped(**files: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def tarred() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.jsonl"), io.BytesIO())
    return out.getvalue()


def database(folder: Path) -> bytes:
    connection = sqlite3.connect(folder / "made")
    connection.execute("CREATE TABLE a (id TEXT)")
    connection.commit()
    connection.close()
    return (folder / "made").read_bytes()


def arrow() -> bytes:
    out = io.BytesIO()
    feather.write_feather(pa.table({"id": ["1"]}), out)
    return out.getvalue()


SHEET = "[Content_Types].xml"
PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>id,text</body></html>\n"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
# what: (bytes, in every kind of file or only in those of records, words of the sentence)
FOREIGN: dict[str, tuple[Callable[[Path], bytes], bool, tuple[str, ...]]] = {
    "xlsx": (lambda _: zipped(**{SHEET: "x", "xl/workbook.xml": "x"}), True, ("spreadsheet", "as CSV")),
    "ods": (
        lambda _: zipped(mimetype="x").replace(
            b"mimetype", b"mimetypeapplication/vnd.oasis.opendocument.spreadsheet"
        ),
        True,
        ("spreadsheet", "as CSV"),
    ),
    "xls": (lambda _: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), True, ("old Office", "as CSV")),
    "docx": (lambda _: zipped(**{SHEET: "x", "word/document.xml": "x"}), True, (".docx", "plain text")),
    "zip": (lambda _: zipped(**{"a.jsonl": LINES.decode()}), True, ("ZIP", "unpack")),
    "tar": (lambda _: tarred(), True, ("tar", "unpack")),
    "tar.gz": (lambda _: packed(tarred(), ".gz"), True, ("tar", "unpack")),
    "gz twice": (lambda _: packed(packed(LINES, ".gz"), ".gz"), True, ("packed twice", "unpack")),
    "bz2": (lambda _: bz2.compress(LINES), True, ("bzip2", "bunzip2")),
    "xz": (lambda _: lzma.compress(LINES), True, ("xz", "unxz")),
    "page": (lambda _: PAGE, False, ("web page", "fetch it again")),
    "packed page": (lambda _: packed(PAGE, ".gz"), False, ("web page", "fetch it again")),
    "xml": (lambda _: b'<?xml version="1.0"?><rows/>', False, ("XML", ".jsonl")),
    "lfs": (lambda _: LFS, True, ("Git LFS pointer", "git lfs pull")),
    "pdf": (lambda _: b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", True, ("PDF", "text out of it")),
    "sqlite": (database, True, ("SQLite", "-csv")),
    "feather": (lambda _: arrow(), True, ("Arrow", ".parquet")),
    "pickle": (lambda _: pickle.dumps([{"id": "1"}]), True, ("pickle", "never opened")),
    "packed parquet": (lambda folder: packed(parquet(folder), ".gz"), True, ("Parquet", "unpack")),
    "image": (lambda _: b"\x89PNG\r\n\x1a\n" + bytes(20), True, ("image",)),
    "noise": (lambda _: bytes(range(256)) * 9, False, ()),
}


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".tsv", ".txt", ".parquet"])
@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_something_else_is_called_that(tmp_path: Path, what: str, ending: str) -> None:
    made, always, words = FOREIGN[what]
    documents, rejects = read(put(tmp_path / f"data{ending}", made(tmp_path)))
    if ending == ".txt" and not always and words:
        assert len(documents) == 1  # a page may be the text that is meant
        return
    assert documents == []
    assert rejects
    assert all(word in rejects[0].reason for word in words), rejects[0].reason
    assert not any("iconv" in reject.reason for reject in rejects)
    assert not words or len(rejects) == 1


def test_what_begins_like_something_else_is_still_a_text(tmp_path: Path) -> None:
    for name in ("ORCHIDS", "PAR1 is a gene", "BZh?", "GIF89a, the format", "Rar! ich", "ORC"):
        assert [document.text for document in read(put(tmp_path / "a.txt", name))[0]] == [name]
    assert pairs(read(put(tmp_path / "a.csv", "ORCID,id,text\n1,2,3\n"))[0]) == [("2", "3")]


def test_a_table_named_json_and_text_named_parquet(tmp_path: Path) -> None:
    for ending in (".jsonl", ".json", ".parquet"):
        for table in (TABLE, TABLE.replace(b",", b";", 2), b"\xef\xbb\xbf" + TABLE):
            _, rejects = read(put(tmp_path / f"a{ending}", table))
            assert len(rejects) == 1
            assert "set source.format: csv" in rejects[0].reason
    assert "set source.format: jsonl" in read(put(tmp_path / "b.parquet", LINES))[1][0].reason
    assert pairs(read(put(tmp_path / "c.parquet", LINES), format="jsonl")[0]) == ROWS


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16"])
@pytest.mark.parametrize("text", ["Привет, мир и все остальные люди на земле", "naïve plain words"])
def test_wide_encodings_are_named_also_without_a_mark(tmp_path: Path, encoding: str, text: str) -> None:
    _, rejects = read(put(tmp_path / "a.txt", text.encode(encoding)))
    assert "iconv -f UTF-16" in rejects[0].reason


@pytest.mark.parametrize(
    ("name", "words"),
    [("a.xlsx", "as CSV"), ("a.pdf", "plain text"), ("a.jsonl.bz2", "gzip"), ("a.zip", "unpack")],
)
def test_names_of_what_is_not_read_come_with_what_helps(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        source_files(SourceConfig(path=str(put(tmp_path / name, b"x"))))
