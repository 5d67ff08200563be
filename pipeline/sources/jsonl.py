"""JSON lines: one object a line, each line by itself, so that a bad one costs nothing but itself."""

from __future__ import annotations

import decimal
import json
from collections.abc import Iterator
from contextlib import closing

from pipeline.records import Origin, Reject
from pipeline.sources.encoding import refuse_bytes
from pipeline.sources.files import SourceFile
from pipeline.sources.json_shape import shape_of
from pipeline.sources.rows import Raw, Wanted, describe, excerpt, mend
from pipeline.sources.streams import Line, read_lines, read_text_blocks, too_long

_BLANKS = b" \t\r\n"
_SHOWN_BYTES = 1024


def read(file: SourceFile, want: Wanted) -> Iterator[Raw | Reject]:
    """Rows of ``file``. Raises Damaged where the file breaks, after the rows before that place."""
    with closing(read_text_blocks(file)) as blocks:
        for line in read_lines(blocks):
            row = parse_line(line, file.name, want)
            if row is not None and (
                line.whole or isinstance(row, Raw)
            ):  # the torn end is told of once, by the file's reject
                yield row


def parse_line(line: Line, name: str, want: Wanted) -> Raw | Reject | None:
    """One line as a row; None for a blank one."""
    origin = Origin(name, line.number, line.offset)
    if line.too_long:
        return Reject(
            origin,
            too_long("line"),
            excerpt(line.data),
        )
    data = line.data.strip(_BLANKS)
    return parse_object(data, origin, want, line.offset + line.data.find(data[:1])) if data else None


def parse_object(data: bytes, origin: Origin, want: Wanted, offset: int) -> Raw | Reject:
    """JSON text of one object, whose first byte lies at ``offset``, as a row with the wanted columns."""
    try:
        value = load_json(data)
    except UnicodeDecodeError as error:
        return Reject(
            origin, refuse_bytes(origin.file, data, error.start, offset + error.start), excerpt(data)
        )
    except json.JSONDecodeError as error:
        return Reject(
            origin,
            mend(f"not valid JSON ({error.msg}: character {error.pos + 1} of the record)"),
            excerpt(data),
        )
    except RecursionError:
        return Reject(origin, "the JSON is nested too deeply to be read; flatten it", excerpt(data))
    if not isinstance(value, dict):
        return Reject(
            origin,
            f"the record is {describe(value)}; it must be a JSON object with an id and a text",
            excerpt(data),
        )
    lacking = any(name not in value for name in want.required) or isinstance(value[want.id], list | dict)
    return Raw(
        origin,
        want.of(value),
        data[:_SHOWN_BYTES],
        named=tuple(value) if lacking else (),
        shape=shape_of(value, want) if lacking else "",
    )


def load_json(data: bytes) -> object:
    """JSON in UTF-8; NaN and integers of any length are accepted. Raises UnicodeDecodeError, JSONDecodeError,
    RecursionError.
    """
    return _DECODER.decode(data.decode("utf-8"))


def _integer(digits: str) -> int | decimal.Decimal:
    """Python refuses to turn very long digit strings into int; such a number in some column must not cost the
    row.
    """
    try:
        return int(digits)
    except ValueError:
        return decimal.Decimal(digits)


_DECODER = json.JSONDecoder(parse_int=_integer)
