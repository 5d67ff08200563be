"""What stands twice where it may stand once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

_Name = TypeVar("_Name", bound=Hashable)


def first_repeated(names: Iterable[_Name]) -> _Name | None:
    """The first of ``names`` that was there before; None where each is there once."""
    seen = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
