"""What a file holds, whatever its name says: told by its first bytes, before any reader is asked.

What is packed by gzip or zstandard is unpacked, and Parquet is read as that, also behind another name. For
everything else that no reader here can make rows of, there is a sentence that helps.
"""

from __future__ import annotations

import codecs
import re
from contextlib import closing, suppress
from dataclasses import replace
from typing import NoReturn

from pipeline.sources.encoding import CONTROL
from pipeline.sources.files import SourceFile
from pipeline.sources.rows import Wanted
from pipeline.sources.streams import DamagedFile, read_blocks

_HEAD_BYTES = 1024
_PACKED = ((b"\x1f\x8b\x08", "gz"), (b"\x28\xb5\x2f\xfd", "zst"))
_PACKER = {"gz": "gzip", "zst": "zstd"}
_SPREADSHEET = "save its sheet as CSV (UTF-8) in the program that made it, and name that file"
_CONVERT = "write it again as .jsonl, .csv or .parquet, and name that file"
_UNPACK = "unpack it, and name the files that were in it"
_SEEN = "take the text out of it first, by text recognition, and name what you get"
_SAVED = "save it as plain text (UTF-8) in the program that made it, and name that file"
_AGAIN = "it may be the page of an error or a login that was saved in place of the file, so fetch it again"
# (first bytes, what has them, what to do)
_TEXTS = (
    (
        b"version https://git-lfs.github.com/spec/",
        "only a Git LFS pointer to the real one",
        "run: git lfs pull",
    ),
    (b"/annex/objects/", "only a git-annex pointer to the real one", "run: git annex get"),
    (b"%PDF-", "a PDF", "take the text out of it first, as by pdftotext, and name what you get"),
    (b"{\\rtf", "a document in rich text (RTF)", _SAVED),
)
# as above; texts may begin so, too, but have no control characters
_BINARIES = (
    (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an old Office file (.xls, .doc)",
        f"if a spreadsheet, {_SPREADSHEET}",
    ),
    (b"PK\x05\x06", "an empty ZIP archive", _UNPACK),
    (b"BZh", "packed by bzip2", "unpack it by bunzip2"),
    (b"\xfd7zXZ\0", "packed by xz", "unpack it by unxz"),
    (b"\x04\x22\x4d\x18", "packed by lz4", "unpack it by unlz4"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (b"SQLite format 3\0", "an SQLite database", "write its table to a file by: sqlite3 -header -csv"),
    (b"ARROW1", "an Arrow (Feather) file", _CONVERT),
    (b"FEA1", "a Feather file", _CONVERT),
    (b"\xff\xff\xff\xff", "a stream of Arrow batches", _CONVERT),
    (b"ORC", "an ORC file", _CONVERT),
    (b"Obj\x01", "an Avro file", _CONVERT),
    (b"\x89HDF\r\n", "an HDF5 file", _CONVERT),
    (b"\x93NUMPY", "a NumPy array", _CONVERT),
    (b"\x89PNG\r\n", "an image (PNG)", _SEEN),
    (b"\xff\xd8\xff", "an image (JPEG)", _SEEN),
    (b"GIF8", "an image (GIF)", _SEEN),
    (b"\x7fELF", "a program", "name the file that holds the records"),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05][\x95}\](c]")
_PAGE = re.compile(rb"\s*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml\b", re.IGNORECASE)
# a list of objects, or an object that goes on in the next line
_JSON_LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*\{|[\[{][ \t\r]*\n)")
_JSON_LINE = re.compile(rb"\A\[|^[ \t]*\{", re.MULTILINE)  # a list, or an object in any of the lines
_RECORDS = ("jsonl", "json", "csv", "tsv", "parquet")


def look_into(file: SourceFile, want: Wanted) -> SourceFile:
    """``file`` as its contents say that it is to be read. Raises DamagedFile, with what it is and what helps,
    where it cannot be.
    """
    stored = _head(replace(file, compression=""))
    if _is_parquet(stored):
        return replace(file, format="parquet", compression="")
    packing = _packing(stored)
    if packing or _is_plainly_text(stored):
        file = replace(file, compression=packing)
    head = _head(file) if file.compression else stored
    if _packing(head) and file.compression:
        _refuse("packed twice", f"unpack it once, by {_PACKER[file.compression]} -d")
    if _is_parquet(head):
        _refuse(
            f"Parquet packed by {_PACKER[file.compression]}", f"unpack it by {_PACKER[file.compression]} -d"
        )
    _refuse_foreign(head)
    if file.format == "jsonl" and _JSON_LIST.match(head):
        return replace(file, format="json")
    if file.format in _RECORDS:
        _refuse_pages(head)
        _refuse_other_records(head, file, want)
    return file


def _head(file: SourceFile) -> bytes:
    """The first bytes of ``file``, unpacked as its name says; fewer where it breaks, which its reader will
    tell.
    """
    head = b""
    with suppress(DamagedFile), closing(read_blocks(file)) as blocks:
        for block in blocks:
            head += block
            if len(head) >= _HEAD_BYTES:
                break
    return head[:_HEAD_BYTES]


def _is_parquet(head: bytes) -> bool:
    return head.startswith(b"PAR1") and CONTROL.search(head) is not None


def _packing(head: bytes) -> str:
    return next((name for mark, name in _PACKED if head.startswith(mark)), "")


def _is_plainly_text(head: bytes) -> bool:
    """Whether a file is not packed, even if its name says so; the little that is left of a cut file says
    nothing.
    """
    if len(head) < len(_PACKED[1][0]) or CONTROL.search(head):
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def _refuse_foreign(head: bytes) -> None:
    """Raises DamagedFile for what nobody means as a text nor as records."""
    binary = CONTROL.search(head)
    for mark, what, remedy in (*_TEXTS, *(_BINARIES if binary else ())):
        if head.startswith(mark):
            _refuse(what, remedy)
    if head.startswith(b"PK\x03\x04"):
        _refuse(*_zipped(head))
    if head[257:262] == b"ustar":
        _refuse("a tar archive", _UNPACK)
    if _PICKLE.match(head):
        _refuse("a Python pickle, which is never opened here, as that would run what is in it", _CONVERT)


def _zipped(head: bytes) -> tuple[str, str]:
    """What kind of ZIP archive begins so, and what to do."""
    if b"oasis.opendocument.spreadsheet" in head:
        return "a spreadsheet (.ods)", _SPREADSHEET
    if b"word/" in head or b"opendocument.text" in head or b"epub" in head:
        return "a text document (.docx, .odt, .epub)", _SAVED
    if b"xl/" in head or b"[Content_Types].xml" in head:
        return "a spreadsheet (.xlsx)", _SPREADSHEET
    return "a ZIP archive", _UNPACK


def _refuse_pages(head: bytes) -> None:
    if _PAGE.match(head):
        _refuse("a web page (HTML)", _AGAIN)
    if _XML.match(head):
        _refuse("an XML file", _CONVERT)


def _refuse_other_records(head: bytes, file: SourceFile, want: Wanted) -> None:
    """Raises DamagedFile for a table under a name of JSON, and for any text under a name of Parquet."""
    first = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if file.format in ("jsonl", "json", "parquet") and _is_table(first, want):
        _refuse(f"a table, not {file.format}", "rename it to .csv, or set source.format: csv")
    if file.format == "parquet" and first.startswith((b"{", b"[")):
        other = "jsonl" if first.startswith(b"{") else "json"
        _refuse("JSON, not Parquet", f"rename it to .{other}, or set source.format: {other}")
    if file.format == "parquet" and _is_plainly_text(head):
        _refuse("text, not Parquet", "rename it to what it is, or set source.format")
    if file.format == "parquet" and file.compression:
        _refuse(f"packed by {_PACKER[file.compression]}, not Parquet", "unpack it and see")


def _is_table(first: bytes, want: Wanted) -> bool:
    """Whether the first line is a header with the needed columns, and no line begins as JSON does."""
    line = first.partition(b"\n")[0].decode("utf-8", "replace").strip()
    return _JSON_LINE.search(first) is None and any(
        set(want.required) <= {cell.strip().strip('"') for cell in line.split(delimiter)}
        for delimiter in ",;\t|"
    )


def _refuse(what: str, remedy: str) -> NoReturn:
    raise DamagedFile(f"by its contents the file is {what}; {remedy}", 1, 0)
