"""Configurations that run directories hold, which may be of an earlier version of the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RETIRED = {"engine.decoder": "this key is gone, because there is only one decoder now; delete it"}
"""What a file that still has a key of an earlier version is told, by dotted place; ``*`` is any item of a
list. Recorded configurations may hold such keys for ever: they are read through ``upgraded``.
"""


def upgraded(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration that a run directory holds, as this version would have recorded it: a copy without the
    keys that are ``RETIRED``.
    """
    kept: dict[str, Any] = _kept(recorded, ())
    return kept


def retired_key(place: tuple[int | str, ...]) -> str:
    """``place`` as ``RETIRED`` has it: ``tasks.*.labels``."""
    return ".".join("*" if isinstance(part, int) else str(part) for part in place)


def _kept(node: Any, place: tuple[int | str, ...]) -> Any:
    """``node``, which lies at ``place``, without retired keys."""
    if isinstance(node, list):
        return [_kept(item, (*place, index)) for index, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    return {
        key: _kept(value, (*place, key))
        for key, value in node.items()
        if retired_key((*place, key)) not in RETIRED
    }
