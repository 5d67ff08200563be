r"""The policy for one row: what is an id, what is a text, what becomes of other fields; a Document or a
Reject with its reason.

Lone surrogates (``\ud800`` escapes in JSON, undecodable file names) become U+FFFD here, in ids, texts and
fields, so that whatever is encoded later as UTF-8 can be.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import reprlib
import unicodedata
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pipeline.config import SourceConfig
from pipeline.records import Document, FieldValue, Origin, Reject

EXCERPT_CHARACTERS = 200
_INEXACT_FLOATS = 2.0**53  # from here on, neighbouring integers are the same float
_MOST_ZEROS = 1000
_WHOLE_AS_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]{0,15})\.0")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxlevel = 80, 80, 8, 4, 3
_WORDS = (
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number"),
    (decimal.Decimal, "a number"),
    (str, "a string"),
    (list, "a list"),
    (dict, "an object"),
    (bytes, "bytes"),
    (datetime.date, "a date"),
    (datetime.time, "a time"),
    (uuid.UUID, "a UUID"),
)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a value that its file format could not give; the row that needs it is rejected with
    ``reason``.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Raw:
    """A row as its reader found it. ``shown`` is its beginning where that is known as bytes; ``identity``
    replaces the id field; ``named`` are all of its fields, where one that it needs is missing,
    and ``shape`` says what it seems to be then, if it is no row.
    """

    origin: Origin
    values: Mapping[str, object]
    shown: bytes | None = None
    identity: str | None = None
    named: Collection[str] = ()
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns to read, by their use. With ``group`` the id field is not read: the group's value is the
    id. Those ``beside`` them, None for all, are only shown: whatever is in them, no row is rejected for it.
    """

    id: str
    text: str
    fields: tuple[str, ...] = ()
    order: str | None = None
    beside: tuple[str, ...] | None = ()
    group: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Each column that documents are made of, once, required ones first."""
        return tuple(dict.fromkeys((*self.required, *self.fields)))

    @property
    def required(self) -> tuple[str, ...]:
        """The columns without which no row can be a document."""
        return tuple(dict.fromkeys((self.id, self.text, *((self.order,) if self.order is not None else ()))))

    def among(self, names: Sequence[str]) -> list[str]:
        """Which of a file's columns are read. Of those beside them, the ones whose name stands there once:
        others cannot be told apart.
        """
        beside = names if self.beside is None else self.beside
        once = (name for name in beside if names.count(name) == 1)
        return list(dict.fromkeys([*(name for name in self.columns if name in names), *once]))

    def of(self, values: Mapping[str, object]) -> dict[str, object]:
        """What is read of a row that comes with all its ``values``."""
        if self.beside is None:
            return dict(values)
        return {name: values[name] for name in (*self.columns, *self.beside) if name in values}

    def lacking(self, names: Collection[str]) -> str | None:
        """A sentence about the first column that is needed and not among ``names``, with what to set; None
        where all are there.
        """
        missing = next((name for name in self.required if name not in names), None)
        if missing is None:
            return None
        shown = ", ".join(repr(name[:40]) for name in list(names)[:20])
        return f"no column {missing!r} (columns: {shown}); {self.remedy(missing, names)}"

    def remedy(self, missing: str, names: Collection[str]) -> str:
        """What to do about a needed column that is not among ``names``."""
        keys = {self.text: "source.text_field", self.order: "source.group_by.order_by"}
        key = "source.group_by.field" if self.group else "source.id_field"
        key = key if missing == self.id else keys[missing]
        meant = [name for name in names if _folded(name) == _folded(missing)]
        if len(meant) == 1:
            return (
                f"{meant[0]!r} is spelled differently: set {key}: {json.dumps(meant[0], ensure_ascii=False)}"
            )
        return "set source.id_field and source.text_field"


def _folded(name: str) -> str:
    """What two names have in common that differ only by case, spaces, - or _."""
    return re.sub(r"[\s_\ufeff-]+", "", unicodedata.normalize("NFKC", name)).casefold()


def wanted(config: SourceConfig, fields: Collection[str], beside: Collection[str] | None = ()) -> Wanted:
    """What the configuration and the templates' ``fields`` need of each row, and columns ``beside`` that."""
    group = config.group_by
    further = tuple(sorted(fields))
    return Wanted(
        group.field if group else config.id_field,
        config.text_field,
        further,
        group.order_by if group else None,
        None if beside is None else tuple(beside),
        group is not None,
    )


def to_document(raw: Raw, want: Wanted) -> Document | Reject:
    """Apply the policy to one row."""
    identity = raw.identity if raw.identity is not None else read_id(raw, want)
    if isinstance(identity, Reject):
        return identity
    text = read_text(raw, want)
    if isinstance(text, Reject):
        return text
    fields = read_fields(raw, want.fields)
    return fields if isinstance(fields, Reject) else Document(mend(identity), text, raw.origin, fields)


def read_id(raw: Raw, want: Wanted) -> str | Reject:
    """The row's id, by the one rule for sources and gold files; see ``id_of``."""
    name = want.id
    value = raw.values.get(name)
    identity = id_of(value)
    if identity is not None:
        return identity
    if raw.shape:
        found = describe(value) if name in raw.values else "missing"
        return reject(raw, f"the id field {name!r} is {found}; {raw.shape}")
    if name not in raw.values:
        remedy = f"so add ids, or {want.remedy(name, raw.named)}"
        return reject(
            raw, f"the id field {name!r} is missing; a row number alone is never an identity, {remedy}"
        )
    if value == "" and isinstance(value, str):
        return reject(raw, f"the id field {name!r} is empty; give every row an id")
    return reject(raw, f"the id field {name!r} is {_no_id(value)}")


def id_of(value: object) -> str | None:
    """What names a document: a string as it is; a whole number by its digits, however it is typed (1, 1.0,
    Decimal("1.00")), other Decimals without trailing zeros; a UUID in its usual form; dates and times in ISO
    format. None for everything else.
    """
    if isinstance(value, str):
        return mend(value) or None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < _INEXACT_FLOATS else None
    if isinstance(value, decimal.Decimal):
        return _digits(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value) if isinstance(value, uuid.UUID) else None


def whole_number(text: str) -> str:
    """The digits alone of what pandas makes of a whole number where another of its column is missing: ``1``
    of ``1.0``. Every other text as it is.
    """
    return text[:-2] if _WHOLE_AS_FLOAT.fullmatch(text) else text


def _digits(value: decimal.Decimal) -> str | None:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or abs(exponent) > _MOST_ZEROS:  # infinite, no number, or absurd
        return None
    digits = f"{value:f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _no_id(value: object) -> str:
    """What ``value`` is, and why it is no id."""
    if isinstance(value, float) and value.is_integer():
        return (
            f"{value:.0f}, a floating-point number too large to have kept all its digits; write ids as "
            f"integers or strings"
        )
    shown = f"{value}, a number" if isinstance(value, float | decimal.Decimal) else describe(value)
    return f"{shown[:80]}; an id is a string, a whole number, a UUID or a date"


def read_text(raw: Raw, want: Wanted) -> str | Reject:
    """The text; an empty one is a text, which the run records as skipped."""
    name = want.text
    value = raw.values.get(name)
    if isinstance(value, str):
        return mend(value)
    if name not in raw.values:
        remedy = f"correct the row, or {want.remedy(name, raw.named)}"
        return reject(raw, f"the text field {name!r} is missing; {remedy}")
    return reject(raw, f"the text field {name!r} is {describe(value)}; a text is a string")


def read_fields(raw: Raw, names: Collection[str]) -> dict[str, FieldValue] | Reject:
    """Plain values of those further fields that the row has; one that is absent is not the same as one that
    is null.
    """
    fields: dict[str, FieldValue] = {}
    for name in names:
        if name not in raw.values:
            continue
        value = raw.values.get(name)
        if isinstance(value, Unreadable):
            return reject(raw, f"the field {name!r} is {describe(value)}")
        fields[name] = plain(value)
    return fields


def plain(value: object) -> FieldValue:
    """Scalars as they are, NaN as null, dates in ISO format, lists and objects as JSON text, the rest as
    text.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, str):
        return mend(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list | tuple | dict):
        return mend(json.dumps(_nested(value), ensure_ascii=False))
    return mend(str(value))


def _nested(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _nested(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_nested(item) for item in value]
    return plain(value)


def mend(text: str) -> str:
    """``text`` with each lone surrogate replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def describe(value: object) -> str:
    """The kind of a value in words."""
    if isinstance(value, Unreadable):
        return f"unreadable ({value.reason})"
    if value is None:
        return "null"
    return next(
        (words for kind, words in _WORDS if isinstance(value, kind)), f"of type {type(value).__name__}"
    )


def reject(raw: Raw, reason: str) -> Reject:
    """The row as a Reject with an excerpt of it."""
    return Reject(raw.origin, mend(reason), excerpt(raw.shown if raw.shown is not None else raw.values))


def excerpt(shown: bytes | str | Mapping[str, object]) -> str:
    """At most EXCERPT_CHARACTERS of a row, undecodable bytes replaced."""
    if isinstance(shown, bytes):
        text = shown[: EXCERPT_CHARACTERS * 4].decode("utf-8", "replace").strip("\r\n")
    else:
        text = shown if isinstance(shown, str) else _SHORT.repr(dict(shown))
    return mend(text[:EXCERPT_CHARACTERS])
