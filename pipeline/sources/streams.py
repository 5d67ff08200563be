"""Bytes of a file: opened, decompressed as far as they are sound, and cut into lines; flat in memory, linear
in time.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

from pipeline.sources.encoding import refuse_wide, wide_encoding
from pipeline.sources.files import SourceFile
from pipeline.system.units import amount

BLOCK_BYTES = 1 << 18
RECORD_LIMIT_BYTES = 1 << 29


def too_long(what: str) -> str:
    """Why ``what``, such as a line or a record, is no row."""
    return f"the {what} is longer than {amount(RECORD_LIMIT_BYTES)}; split the document"


"""A line, row or record longer than this is rejected instead of held in memory."""

# zstandard gives back all that a piece of input unpacks to at once, so the pieces are small.
_ZSTD_PIECE_BYTES = 1 << 10
_ZSTD_WINDOW_LIMIT_BYTES = 1 << 31
_NEWLINE = re.compile(rb"\n")
_ANY_NEWLINE = re.compile(rb"\r\n|\r|\n")


class DamagedFile(Exception):
    """The rest of a file cannot be read; what came before it is good. Becomes the file's Reject."""

    def __init__(self, reason: str, line: int = 1, offset: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.line, self.offset = reason, line, offset


@dataclass(frozen=True, slots=True)
class Line:
    """A line with its terminator. ``whole`` is False where the file broke inside it, ``too_long`` where only
    its head is kept.
    """

    number: int
    offset: int
    data: bytes
    whole: bool = True
    too_long: bool = False


def read_blocks(file: SourceFile) -> Generator[bytes, None, None]:
    """Decompressed blocks. Raises Damaged where the file cannot be opened, read or decompressed any
    further.
    """
    raw = _read_raw(file)
    with closing(raw):
        yield from _UNPACK[file.compression](raw)


def read_text_blocks(file: SourceFile) -> Generator[bytes, None, None]:
    """Blocks of what may be UTF-8, its byte-order mark left in place. Raises Damaged for UTF-16 and
    UTF-32.
    """
    head = b""
    with closing(read_blocks(file)) as blocks:
        for block in blocks:
            head += block
            if len(head) >= 4:
                break
        encoding = wide_encoding(head)
        if encoding:
            raise DamagedFile(refuse_wide(file.name, encoding), 1, 0)
        if head:
            yield head
        yield from blocks


def read_lines(
    blocks: Iterator[bytes], *, any_newline: bool = False, limit_bytes: int = RECORD_LIMIT_BYTES
) -> Iterator[Line]:
    r"""Lines ended by ``\n`` (with ``any_newline`` also by ``\r\n`` and ``\r``); the UTF-8 mark at the start
    is left out.

    Damaged from below passes through with the line and offset of the place, after the piece of a line before
    it (``whole=False``).
    """
    cutter = _Cutter(limit_bytes)
    pattern = _ANY_NEWLINE if any_newline else _NEWLINE
    carried = b""
    try:
        for block in blocks:
            data, carried = carried + block, b""
            if any_newline and data.endswith(b"\r"):  # perhaps the first half of \r\n
                data, carried = data[:-1], b"\r"
            yield from cutter.cut(data, pattern)
    except DamagedFile as fault:
        line, offset = cutter.number, cutter.offset  # where the line begins that the fault tore
        yield from cutter.rest(carried, whole=False)
        raise DamagedFile(fault.reason, line, offset) from None
    yield from cutter.rest(carried, whole=True)


class _Cutter:
    """Collects pieces of a line until its end; ``number`` and ``offset`` are those of the line being
    collected.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.number, self.offset = 1, 0
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._limit_bytes = limit_bytes
        self._too_long = False

    def cut(self, block: bytes, pattern: re.Pattern[bytes]) -> Iterator[Line]:
        start = 0
        for match in pattern.finditer(block):
            self._add(block[start : match.end()])
            start = match.end()
            yield self._line()
        if start < len(block):
            self._add(block[start:])

    def rest(self, carried: bytes, whole: bool) -> Iterator[Line]:
        if carried:
            self._add(carried)
        if self._size_bytes:
            yield self._line(whole)

    def _add(self, piece: bytes) -> None:
        self._size_bytes += len(piece)
        if self._size_bytes > self._limit_bytes:
            if not self._too_long:
                self._pieces = [b"".join(self._pieces)[:1024] or piece[:1024]]
            self._too_long = True
        else:
            self._pieces.append(piece)

    def _line(self, whole: bool = True) -> Line:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        if self.offset == 0:
            data = data.removeprefix(codecs.BOM_UTF8)
        line = Line(self.number, self.offset, data, whole, self._too_long)
        self.number, self.offset = self.number + 1, self.offset + self._size_bytes
        self._pieces, self._size_bytes, self._too_long = [], 0, False
        return line


def _read_raw(file: SourceFile) -> Generator[bytes, None, None]:
    try:
        with file.open() as stream:
            while block := stream.read(BLOCK_BYTES):
                yield block
    except Exception as error:  # remote filesystems raise their libraries' own classes
        raise DamagedFile(f"the file cannot be read: {type(error).__name__}: {error}") from error


def _plain(raw: Iterator[bytes]) -> Iterator[bytes]:
    yield from raw


def _gunzip(raw: Iterator[bytes]) -> Iterator[bytes]:
    """All members of a gzip file, zero padding after them ignored."""
    member: zlib._Decompress | None = None
    members = 0
    for block in raw:
        left = block
        while left := left if member or not members else left.lstrip(b"\0"):
            if member is None:
                member, members = zlib.decompressobj(wbits=31), members + 1
            before = member.copy()
            try:
                data = member.decompress(left, BLOCK_BYTES)
            except zlib.error as error:
                yield from _salvage(before, left)
                raise DamagedFile(f"the gzip data are damaged: {error}") from None
            if data:
                yield data
            left = member.unused_data if member.eof else member.unconsumed_tail
            member = None if member.eof else member
    if member is not None and (rest := member.flush()):
        yield rest
    if not members or (member is not None and not member.eof):
        raise DamagedFile("the gzip data end before their end mark: the file is truncated")


def _salvage(member: zlib._Decompress, block: bytes) -> Iterator[bytes]:
    """What ``block`` unpacks to before its fault; zlib keeps nothing of a call that fails, so it gets single
    bytes.
    """
    try:
        for index in range(len(block)):
            if data := member.decompress(block[index : index + 1]):
                yield data
    except zlib.error:
        return


def _unzstd(raw: Iterator[bytes]) -> Iterator[bytes]:
    """All frames of a zstandard file."""
    import zstandard  # only where such a file is read

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_LIMIT_BYTES)
    frame = None
    frames = 0
    for block in raw:
        for start in range(0, len(block), _ZSTD_PIECE_BYTES):
            left = block[start : start + _ZSTD_PIECE_BYTES]
            while left:
                if frame is None:
                    frame, frames = decompressor.decompressobj(), frames + 1
                try:
                    data = frame.decompress(left)
                except zstandard.ZstdError as error:
                    raise DamagedFile(f"the zstandard data are damaged: {error}") from None
                if data:
                    yield data
                left = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    if frame is not None or not frames:
        raise DamagedFile("the zstandard data end in the middle of a frame: the file is truncated")


_UNPACK = {"": _plain, "gz": _gunzip, "zst": _unzstd}
