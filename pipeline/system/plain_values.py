"""Plain values that come back as they were from YAML, JSON, a ledger and a message to a worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Place = tuple[int | str, ...]
_LEAST, _BEYOND = -(2**63), 2**64  # what a message can carry


def what_is_lost(value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Each text and number in ``value`` that could not be sent or written, with its place and a sentence."""
    match value:
        case str() if not _is_text(value):
            yield place, f"{value!a:.80} is no text: it holds half a character"
        case int() if not _LEAST <= value < _BEYOND:
            yield place, "the number is too large: 64 bits hold it no more"
        case Mapping():
            for key, item in value.items():
                yield from what_is_lost(key, (*place, str(key)))
                yield from what_is_lost(item, (*place, str(key)))
        case list() | tuple():
            for index, item in enumerate(value):
                yield from what_is_lost(item, (*place, index))


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def joined_halves(text: str) -> str:
    """``text`` with characters that stand in it as two halves of 16 bits put together; as it is, where one of
    them has no other.
    """
    try:
        return text if _is_text(text) else text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return text
