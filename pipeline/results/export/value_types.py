"""What the values of a source's column have in common: found value by value, so that a column of a million
rows needs no more memory than its type.

A value is kept as JSON has it (dates as ISO text, NaN and infinities as null), which is how JSON lines and
CSV show it; its column's type says what Parquet makes of that. What has nothing in common is text.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal

from pipeline.sources.rows import Unreadable, mend, plain

Kind = Literal[
    "nothing",
    "yes or no",
    "integer",
    "number",
    "decimal",
    "date",
    "time",
    "moment",
    "moment in a zone",
    "text",
    "list",
    "object",
    "numbers by name",
]
_EXACT = 2**53
"""Whole numbers up to here are numbers in double precision, too."""
_MOST_FIELDS = 200
_MOST_DIGITS = 38
_MOST_DEPTH = 16
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class ValueType:
    """``least`` and ``most`` bound whole numbers, ``whole`` and ``fraction`` count the digits of decimals
    before and after the point; ``item`` is that of a list's items, ``fields`` those of an object.
    """

    kind: Kind
    least: int = 0
    most: int = 0
    whole: int = 0
    fraction: int = 0
    item: ValueType | None = None
    fields: Mapping[str, ValueType] = field(default_factory=dict)


NOTHING = ValueType("nothing")
TEXT = ValueType("text")


def as_json(value: object, depth: int = 0) -> Any:
    """One value as its source gave it, in types that JSON has."""
    if isinstance(value, Unreadable) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, dict | list | tuple) and depth < _MOST_DEPTH:
        if isinstance(value, dict):
            return {mend(str(name)): as_json(item, depth + 1) for name, item in value.items()}
        return [as_json(item, depth + 1) for item in value]
    return plain(value)


def type_of(value: object, depth: int = 0) -> ValueType:
    """The type of one value as its source gave it."""
    if isinstance(value, Unreadable):
        return NOTHING
    if isinstance(value, dict | list | tuple) and depth < _MOST_DEPTH:
        if isinstance(value, dict):
            return _object({mend(str(name)): type_of(item, depth + 1) for name, item in value.items()})
        items = (type_of(item, depth + 1) for item in value)
        return ValueType("list", item=reduce(common, items, NOTHING))
    if isinstance(value, int) and not isinstance(value, bool):
        return ValueType("integer", least=value, most=value)
    if isinstance(value, decimal.Decimal):
        return _decimal(value)
    if isinstance(value, datetime.datetime):
        return ValueType("moment" if value.tzinfo is None else "moment in a zone")
    if isinstance(value, float):
        return ValueType("number") if math.isfinite(value) else NOTHING
    return next((ValueType(kind) for python, kind in _SCALARS if isinstance(value, python)), TEXT)


_SCALARS: tuple[tuple[type, Kind], ...] = (
    (type(None), "nothing"),
    (bool, "yes or no"),
    (datetime.date, "date"),
    (datetime.time, "time"),
)


def _decimal(value: decimal.Decimal) -> ValueType:
    if not value.is_finite():
        return TEXT
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    fraction = max(0, -exponent)
    whole = max(0, len(digits) + exponent)
    return ValueType("decimal", whole=whole, fraction=fraction)


def _object(fields: Mapping[str, ValueType]) -> ValueType:
    """An object with that many different fields is a mapping rather than a record: text."""
    return ValueType("object", fields=fields) if len(fields) <= _MOST_FIELDS else TEXT


def common(one: ValueType, other: ValueType) -> ValueType:
    """The narrowest type that holds the values of both."""
    if one == other or other.kind == "nothing":
        return one
    if one.kind == "nothing":
        return other
    if one.kind == other.kind:
        return _widened(one, other)
    if {one.kind, other.kind} == {"integer", "number"}:
        whole = one if one.kind == "integer" else other
        return ValueType("number") if -_EXACT <= whole.least <= whole.most <= _EXACT else TEXT
    return TEXT


def _widened(one: ValueType, other: ValueType) -> ValueType:
    if one.kind == "object":
        names = dict.fromkeys([*one.fields, *other.fields])
        return _object(
            {name: common(one.fields.get(name, NOTHING), other.fields.get(name, NOTHING)) for name in names}
        )
    if one.kind == "list":
        return ValueType("list", item=common(one.item or NOTHING, other.item or NOTHING))
    return ValueType(
        one.kind,
        least=min(one.least, other.least),
        most=max(one.most, other.most),
        whole=max(one.whole, other.whole),
        fraction=max(one.fraction, other.fraction),
    )


def arrow_type(kind: ValueType, pa: Any) -> Any:
    """The column of Parquet that holds such values; what it cannot hold as it is, it holds as text."""
    if kind.kind == "integer":
        return pa.int64() if kind.least in _INT64 and kind.most in _INT64 else pa.string()
    if kind.kind == "decimal" and kind.whole + kind.fraction <= _MOST_DIGITS:
        return pa.decimal128(max(1, kind.whole + kind.fraction), kind.fraction)
    if kind.kind == "list":
        return pa.list_(arrow_type(kind.item or NOTHING, pa))
    if kind.kind == "object" and kind.fields:
        return pa.struct([(name, arrow_type(each, pa)) for name, each in kind.fields.items()])
    others = {
        "yes or no": pa.bool_(),
        "number": pa.float64(),
        "date": pa.date32(),
        "time": pa.time64("us"),
        "moment": pa.timestamp("us"),
        "moment in a zone": pa.timestamp("us", tz="UTC"),
        "numbers by name": pa.map_(pa.string(), pa.float64()),
    }
    return others.get(kind.kind, pa.string())


def to_arrow(arrow: Any, pa: Any) -> Callable[[Any], Any]:
    """What makes of a value, as JSON has it and not null, one for a column of the type ``arrow``."""
    if pa.types.is_list(arrow):
        item = to_arrow(arrow.value_type, pa)
        return lambda value: [None if each is None else item(each) for each in value]
    if pa.types.is_struct(arrow):
        fields = [(each.name, to_arrow(each.type, pa)) for each in arrow]
        return lambda value: {
            name: None if value.get(name) is None else read(value[name]) for name, read in fields
        }
    if pa.types.is_map(arrow):
        return lambda value: list(value.items())
    if pa.types.is_string(arrow):
        return lambda value: value if isinstance(value, str) else as_text(value)
    reads: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
        (pa.types.is_decimal, decimal.Decimal),
        (pa.types.is_date, datetime.date.fromisoformat),
        (pa.types.is_time, datetime.time.fromisoformat),
        (pa.types.is_timestamp, datetime.datetime.fromisoformat),
        (pa.types.is_floating, float),
    )
    return next((read for fits, read in reads if fits(arrow)), lambda value: value)


def as_text(value: Any) -> str:
    """A value that is no text, as JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
