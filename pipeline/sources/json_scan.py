"""Cuts JSON bytes into values without parsing them: finds where each ends, holds no more than one of them.

Works on bytes, because all structure of JSON is ASCII, so a value with broken encoding still has an end. A
misplaced quote can make it cut wrongly; what it cuts is then no valid JSON, because quotes inside strings are
escaped.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.sources.streams import RECORD_LIMIT_BYTES, DamagedFile

_STRUCTURE = re.compile(rb'["{}\[\],]')
# Possessive, so that a string of many megabytes full of escapes needs no memory for going back.
_INSIDE_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_NOT_BLANK = re.compile(rb"[^ \t\r\n]")
_KEPT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Slice:
    """The bytes of one value. ``whole``: its end was seen; ``dropped``: only its head is kept."""

    data: bytes
    line: int
    offset: int
    whole: bool
    dropped: bool = False


class Scanner:
    """Reads forward over ``blocks``. A fault of the file counts as its end and is kept in ``fault``."""

    def __init__(self, blocks: Iterator[bytes], limit_bytes: int = RECORD_LIMIT_BYTES) -> None:
        self._blocks = blocks
        self._buffer = bytearray()
        self._limit_bytes = limit_bytes
        self.offset, self.line = 0, 1
        self.fault: DamagedFile | None = None
        while len(self._buffer) < len(codecs.BOM_UTF8) and self._more():
            pass
        if self._buffer.startswith(codecs.BOM_UTF8):
            self._drop(len(codecs.BOM_UTF8))

    def peek(self) -> bytes:
        """The next byte that is not blank, blanks passed over; empty at the end."""
        while (match := _NOT_BLANK.search(self._buffer)) is None:
            self._drop(len(self._buffer))
            if not self._more():
                return b""
        self._drop(match.start())
        return bytes(self._buffer[:1])

    def skip(self) -> None:
        """Pass over the byte that ``peek`` showed."""
        self._drop(1)

    def drain(self) -> None:
        """Pass over all that is left, which shows whether the file is whole."""
        while self._more():
            self._drop(len(self._buffer))

    def key(self) -> str | None:
        """The key of an object that begins here and its colon; None where there is no such thing."""
        at = 1
        while True:
            match = _INSIDE_STRING.match(self._buffer, at)
            at = match.end() if match else at
            if at < len(self._buffer) and self._buffer[at] == 0x22:
                break
            if at > self._limit_bytes or not self._more():
                return None
        quoted = bytes(self._buffer[: at + 1])
        self._drop(at + 1)
        if self.peek() != b":":
            return None
        self._drop(1)
        try:
            return str(json.loads(quoted.decode("utf-8")))
        except ValueError:
            return ""

    def value(self, *, keep: bool = True, alone: bool = False) -> Slice:
        """The value that begins here, up to the comma or bracket that ends it (left in place).

        With ``alone`` (an object or list that lies inside no other) it ends with its own closing bracket.
        """
        line, offset = self.line, self.offset
        head: bytes | None = None
        limit_bytes = self._limit_bytes if keep else _KEPT_BYTES
        state, at, ended = _State(alone), 0, False
        while not ended:
            at, ended = state.advance(self._buffer, at)
            if head is None and at > limit_bytes:
                head = bytes(self._buffer[:_KEPT_BYTES])
            if not ended and head is not None:
                self._drop(at)
                at = 0
            if not ended and not self._more():
                break
        data = head if head is not None else bytes(self._buffer[:at])
        self._drop(at)
        return Slice(data.rstrip(b" \t\r\n"), line, offset, ended, head is not None)

    def _more(self) -> bool:
        try:
            block = next(self._blocks, None) if self.fault is None else None
        except DamagedFile as fault:
            self.fault, block = fault, None
        self._buffer += block or b""
        return block is not None

    def _drop(self, count: int) -> None:
        self.line += self._buffer.count(b"\n", 0, count)
        self.offset += count
        del self._buffer[:count]


class _State:
    """Depth of brackets and whether a string is open, carried from block to block."""

    def __init__(self, alone: bool) -> None:
        self._depth, self._in_string, self._alone = 0, False, alone

    def advance(self, buffer: bytearray, at: int) -> tuple[int, bool]:
        """Go on from ``at``; returns where the value ends, or how far it has been seen, and whether it
        ended.
        """
        while True:
            if self._in_string:
                match = _INSIDE_STRING.match(buffer, at)
                at = match.end() if match else at
                if (
                    at >= len(buffer) or buffer[at] != 0x22
                ):  # the end, or a backslash whose second byte is still to come
                    return at, False
                self._in_string, at = False, at + 1
            found = _STRUCTURE.search(buffer, at)
            if found is None:
                return len(buffer), False
            at = found.start()
            byte = found[0]
            if byte == b'"':
                self._in_string = True
            elif byte in b"{[":
                self._depth += 1
            elif self._depth == 0:
                return at, True
            elif byte in b"}]":
                self._depth -= 1
                if self._depth == 0 and self._alone:
                    return at + 1, True
            at += 1
