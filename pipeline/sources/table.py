"""CSV and TSV: strict about what could shift a column or swallow rows, so that no document is made of misread
cells.

A row is rejected when its bytes are not UTF-8, its cells are not as many as the header's, or its quoting is
broken. After broken quoting the following lines may be rows or the rest of a cell: they are rejected too, one
by one, until one shows by its own quoted cells (or by the balance of quotes) that it begins a row.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from pipeline.records import Origin, Reject
from pipeline.sources.encoding import refuse_bytes
from pipeline.sources.files import SourceFile
from pipeline.sources.rows import Raw, Unreadable, Wanted, excerpt, whole_number
from pipeline.sources.streams import RECORD_LIMIT_BYTES, DamagedFile, Line, read_lines, read_text_blocks
from pipeline.system.repeated import first_repeated

_DELIMITERS = {"csv": ",;|\t", "tsv": "\t"}
_UNDECODED = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of bytes that are not UTF-8
_SEPARATOR = re.compile(rb'"?sep=([,;|\t])"?[\r\n]*', re.IGNORECASE)
_JSON = re.compile(rb'\s*(?:\{\s*["}]|\[\s*[\[{"])')
_DOUBT = "follows a row with broken quoting and may be a part of its text; mend the quotes of that row"
# of the whole process; the default refuses cells of more than 131,072 characters
csv.field_size_limit(RECORD_LIMIT_BYTES)


@dataclass(frozen=True, slots=True)
class _Row:
    """Cells of a row and the lines it was read from; ``fault`` in place of cells where they cannot be
    told.
    """

    cells: list[str]
    lines: list[Line]
    fault: str = ""

    @property
    def data(self) -> bytes:
        return b"".join(line.data for line in self.lines)


def read(file: SourceFile, want: Wanted) -> Iterator[Raw | Reject]:
    """Rows of ``file``. Raises Damaged where it breaks, after the rows before, or when its header lacks a
    needed column.
    """
    with closing(read_text_blocks(file)) as blocks:
        source = _Source(read_lines(blocks, any_newline=True))
        header = _read_header(source, file, want)
        if header is None:
            return
        names, delimiter = header
        columns = set(want.among(names))
        while (row := source.row(delimiter)) is not None:
            if _is_header(row, names, want):  # of a file that was put behind another one
                _refuse_repeated(row, want)
                names, columns = row.cells, set(want.among(row.cells))
                continue
            if _SEPARATOR.fullmatch(row.data):
                continue
            yield _convert(row, names, columns, file.name, want)
            if row.fault:
                yield from _find_next_row(source, row, delimiter, len(names), file.name)


class _Source:
    """Lines with a way back, for the lines after a row that turned out to be broken."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self._returned: deque[Line] = deque()

    def line(self) -> Line | None:
        """The next line; None at the end. A torn last line is not given out, as its last cell may be cut.
        Raises Damaged.
        """
        if self._returned:
            return self._returned.popleft()
        line = next(self._lines, None)
        return line if line is None or line.whole else self.line()

    def give_back(self, lines: list[Line]) -> None:
        """Put lines back to be read again."""
        self._returned.extendleft(reversed(lines))

    def row(self, delimiter: str) -> _Row | None:
        """The next row that is not blank; None at the end. Of a row with broken quoting only the first line
        is taken.

        Raises Damaged, with the place of the row, where the file breaks inside one.
        """
        while True:
            taken: list[Line] = []
            try:
                cells = next(csv.reader(self._decoded(taken), delimiter=delimiter, strict=True), None)
            except csv.Error as error:
                self.give_back(taken[1:])
                return _Row([], taken[:1], f"the quoting is broken ({error})")
            except DamagedFile as damage:
                first = taken[0] if taken else None
                raise DamagedFile(damage.reason, first.number, first.offset) if first else damage from None
            if cells is None:
                return None
            if cells:
                return _Row(
                    cells, taken, "a line of it is too long" if any(line.too_long for line in taken) else ""
                )

    def _decoded(self, taken: list[Line]) -> Iterator[str]:
        size_bytes = 0
        while (line := self.line()) is not None:
            taken.append(line)
            size_bytes += len(line.data)
            if size_bytes > RECORD_LIMIT_BYTES:
                return
            yield line.data.decode("utf-8", "surrogateescape")


def _read_header(source: _Source, file: SourceFile, want: Wanted) -> tuple[list[str], str] | None:
    """Names of the columns and the delimiter: the first of those usual for the format by which the needed
    columns are found.
    """
    found: dict[str, _Row] = {}
    for delimiter in _said_delimiter(source) or _DELIMITERS[file.format]:
        row = source.row(delimiter)
        if row is None:
            return None
        if set(want.required) <= set(row.cells):
            _refuse_repeated(row, want)
            return row.cells, delimiter
        found[delimiter] = row
        source.give_back(row.lines)
    row = max(found.values(), key=lambda candidate: len(candidate.cells))
    _refuse_undecoded(row, file.name)
    line = row.lines[0]
    lacking = want.lacking(row.cells)
    if row.fault:
        lacking = f"{lacking}; {row.fault}"
    if _JSON.match(line.data):
        lacking = f"{lacking}. It looks like JSON lines: rename it to .jsonl, or set source.format: jsonl"
    raise DamagedFile(f"the header has {lacking}, or add a header", line.number, line.offset)


def _said_delimiter(source: _Source) -> str:
    """What a first line such as ``sep=;``, which spreadsheets write and read, says; the line is passed
    over. Empty where there is none.
    """
    line = source.line()
    said = None if line is None else _SEPARATOR.fullmatch(line.data)
    if said is None and line is not None:
        source.give_back([line])
    return said[1].decode() if said else ""


def _is_header(row: _Row, names: list[str], want: Wanted) -> bool:
    """Whether ``row`` names the columns again, in whatever order; a byte-order mark before it goes."""
    if row.cells and row.cells[0].startswith("\ufeff"):
        bare = [row.cells[0].removeprefix("\ufeff"), *row.cells[1:]]
        if _is_header(_Row(bare, row.lines), names, want):
            row.cells[0] = bare[0]
            return True
    if row.cells == names:
        return len(names) > 1
    return len(want.required) > 1 and set(want.required) <= set(row.cells)


def _refuse_repeated(header: _Row, want: Wanted) -> None:
    if (repeated := first_repeated(name for name in header.cells if name in want.columns)) is not None:
        line = header.lines[0]
        raise DamagedFile(
            f"the header names the column {repeated!r} more than once; rename all but one",
            line.number,
            line.offset,
        )


def _refuse_undecoded(row: _Row, name: str) -> None:
    if any(_UNDECODED.search(cell) for cell in row.cells):
        line = row.lines[0]
        raise DamagedFile(_encoding_sentence(row, name), line.number, line.offset)


def _encoding_sentence(row: _Row, name: str) -> str:
    data = row.data
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return refuse_bytes(name, data, error.start, row.lines[0].offset + error.start)
    return "the row is not UTF-8"


def _convert(row: _Row, names: list[str], columns: set[str], file_name: str, want: Wanted) -> Raw | Reject:
    origin = Origin(file_name, row.lines[0].number, row.lines[0].offset)
    reason = row.fault
    if not reason and len(row.cells) != len(names):
        reason = (
            f"the row has {len(row.cells)} cells and the header {len(names)}; quote cells that hold "
            f"the delimiter or a line end"
        )
    if reason:
        return Reject(origin, reason, excerpt(row.data))
    values: dict[str, object] = {}
    for name, cell in zip(names, row.cells, strict=True):
        if name not in columns:
            continue
        values[name] = cell
        if not cell.isascii() and _UNDECODED.search(cell):
            if name in want.columns:
                return Reject(origin, _encoding_sentence(row, file_name), excerpt(row.data))
            values[name] = Unreadable("not UTF-8")
    if isinstance(identity := values.get(want.id), str):
        values[want.id] = whole_number(identity)
    return Raw(origin, values, row.lines[0].data[:1024])


def _find_next_row(
    source: _Source, broken: _Row, delimiter: str, width: int, file_name: str
) -> Iterator[Reject]:
    """Rejects for the lines after a broken row, up to the one that begins a row again (see the module's
    description).
    """
    line: Line | None = broken.lines[0]
    whole_row = _row_pattern(delimiter, width)
    quotes = 0
    while line is not None:
        quotes += line.data.count(b'"')
        if quotes % 2 == 0 and line.data.rstrip(b"\r\n").endswith(b'"'):
            return
        line = source.line()
        if line is not None and b'"' in line.data and whole_row.fullmatch(line.data.rstrip(b"\r\n")):
            source.give_back([line])
            return
        if line is not None and line.data.strip():
            yield Reject(Origin(file_name, line.number, line.offset), _DOUBT, excerpt(line.data))


def _row_pattern(delimiter: str, width: int) -> re.Pattern[bytes]:
    """Matches a line that is a whole row of ``width`` cells with quotes only where they belong."""
    comma = re.escape(delimiter.encode())
    cell = rb'(?:"(?:[^"]|"")*+"|[^"%s\r\n]*+)' % comma
    return re.compile(rb"%s(?:%s%s){%d}" % (cell, comma, cell, width - 1))
