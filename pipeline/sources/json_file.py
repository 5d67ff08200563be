"""A .json file: a list of objects, one object, an object that holds the list (``records_field``), or,
misnamed, JSON lines.

Records of a list are cut out one by one, so memory stays flat and a bad record costs only itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from pipeline.errors import SourceError
from pipeline.records import Origin, Reject
from pipeline.sources import jsonl
from pipeline.sources.files import SourceFile
from pipeline.sources.json_scan import Scanner, Slice
from pipeline.sources.rows import Raw, Wanted, excerpt
from pipeline.sources.streams import DamagedFile, read_lines, read_text_blocks, too_long


def read(file: SourceFile, want: Wanted, records_field: str | None = None) -> Iterator[Raw | Reject]:
    """Rows of ``file``. Raises Damaged where it breaks, after the rows before; SourceError when
    ``records_field`` leads to no list.
    """
    with closing(read_text_blocks(file)) as blocks:
        scanner = Scanner(blocks)
        first = scanner.peek()
        if first == b"":
            raise scanner.fault or DamagedFile("the file holds no JSON value", scanner.line, scanner.offset)
        if first == b"[":
            yield from _elements(scanner, file.name, want)
            _refuse_more(scanner)
            return
        if first == b"{" and records_field is not None:
            yield from _named_list(scanner, file.name, want, records_field)
            return
        if first == b"{":
            start = scanner.value(alone=True)
            if not _is_lines(file, scanner, start, want):
                yield from _objects(scanner, start, file.name, want)
                return
    yield from jsonl.read(file, want)


def _elements(scanner: Scanner, name: str, want: Wanted) -> Iterator[Raw | Reject]:
    """The elements of the list that begins here, its closing bracket passed over. Raises Damaged when it has
    none.
    """
    scanner.skip()
    end = scanner.peek()
    while end != b"]":
        piece = scanner.value()
        row = _row(piece, name, want)
        if piece.whole or isinstance(row, Raw):
            yield row
        end = scanner.peek()
        if end == b"":
            raise _broken(scanner, "the file ends inside the list of records: it is truncated")
        if end == b"}":
            raise _broken(scanner, "a bracket closes what was not opened; the rest of the file was not read")
        if end == b",":
            scanner.skip()
            scanner.peek()
    scanner.skip()


def _named_list(scanner: Scanner, name: str, want: Wanted, records_field: str) -> Iterator[Raw | Reject]:
    """The list under ``records_field`` of the object that begins here; what follows it in the object is not
    read.
    """
    seen: list[str] = []
    scanner.skip()
    while scanner.peek() == b'"' and (key := scanner.key()) is not None:
        seen.append(key)
        first = scanner.peek()
        if key == records_field and first == b"[":
            yield from _elements(scanner, name, want)
            scanner.drain()
            if scanner.fault:
                raise _broken(scanner, "")
            return
        if key == records_field and first:
            raise SourceError(
                f"{name}: {records_field!r} holds no list of records; set source.records_field to the key "
                f"that does"
            )
        scanner.value(keep=False)
        if scanner.peek() == b",":
            scanner.skip()
    if scanner.peek() != b"}":
        raise _broken(
            scanner,
            f"the file breaks before the records under {records_field!r}: it is truncated or not valid JSON",
        )
    shown = ", ".join(repr(key[:60]) for key in seen[:20]) or "none"
    raise SourceError(
        f"{name} has no key {records_field!r} at its top level (keys: {shown}); correct source.records_field"
    )


def _is_lines(file: SourceFile, scanner: Scanner, start: Slice, want: Wanted) -> bool:
    """Whether a file that begins with the object ``start`` is JSON lines: a line that is an object by itself,
    and more after it.
    """
    if isinstance(_row(start, file.name, want), Raw):
        return scanner.line == start.line and scanner.peek() != b"" and scanner.line > start.line
    try:  # the first line may be broken
        with closing(read_text_blocks(file)) as blocks:
            rows = (jsonl.parse_line(line, file.name, want) for line in read_lines(blocks))
            return any(isinstance(row, Raw) for row in rows)
    except DamagedFile:
        return False


def _objects(scanner: Scanner, start: Slice, name: str, want: Wanted) -> Iterator[Raw | Reject]:
    """One object, or several after each other; Damaged for what follows a broken one."""
    piece = start
    while True:
        row = _row(piece, name, want)
        if piece.whole or isinstance(row, Raw):
            yield row
        if not piece.whole:
            raise _broken(
                scanner, "the file ends inside an object: it is truncated, or a quote or bracket is missing"
            )
        following = scanner.peek()
        if following != b"{" or isinstance(row, Reject):
            _refuse_more(scanner)
            return
        piece = scanner.value(alone=True)


def _row(piece: Slice, name: str, want: Wanted) -> Raw | Reject:
    origin = Origin(name, piece.line, piece.offset)
    if piece.dropped:
        return Reject(
            origin,
            too_long("record"),
            excerpt(piece.data),
        )
    return jsonl.parse_object(piece.data, origin, want, piece.offset)


def _refuse_more(scanner: Scanner) -> None:
    """Raises Damaged unless only blanks are left."""
    if scanner.peek() or scanner.fault:
        raise _broken(
            scanner,
            "something follows the end of the records and was not read; a .json file holds one list or "
            "one object",
        )


def _broken(scanner: Scanner, reason: str) -> DamagedFile:
    """The file's own fault where there is one, else ``reason``, at the place where reading stopped."""
    return DamagedFile(scanner.fault.reason if scanner.fault else reason, scanner.line, scanner.offset)
