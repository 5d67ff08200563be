"""What a JSON object is that lacks the needed fields: records under a key, columns instead of rows, records
by their names. Only told, never read by a guess.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pipeline.sources.rows import Wanted

_WRITTEN = ".to_json('rows.jsonl', orient='records', lines=True)"


def shape_of(value: Mapping[str, object], want: Wanted) -> str:
    """What ``value`` seems to be, and what to do; empty where it looks like a row that lacks a field."""
    if (path := _path_to_records(value, want)) is not None:
        return _told(path)
    if all(isinstance(value.get(name), list | dict) for name in want.required):
        return (
            f"the file holds columns instead of rows; write it in rows, one object a line "
            f"(pandas.read_json(FILE, dtype=False){_WRITTEN})"
        )
    held = list(value.values())
    if held and all(isinstance(item, dict) and want.text in item for item in held):
        return (
            f"it holds records by their names; put each name into its record as {want.id!r}, and write one "
            f"record a line (pandas.read_json(FILE, orient='index', dtype=False, convert_axes=False)"
            f".rename_axis({want.id!r}).reset_index(){_WRITTEN})"
        )
    return ""


def _told(path: list[str]) -> str:
    where = " in ".join(map(repr, reversed(path)))
    if len(path) > 1:
        return f"the records are under {where}; write that list to a file of its own, and name it"
    key = json.dumps(path[0], ensure_ascii=False)
    return f"the records are under {where}: set source.format: json and source.records_field: {key}"


def _path_to_records(value: Mapping[str, object], want: Wanted, deep: int = 2) -> list[str] | None:
    """Keys that lead to a list of objects; to one with the needed fields, if there are several."""
    found = [key for key, held in value.items() if isinstance(held, list) and _is_object(held)]
    found.sort(key=lambda key: not _fits(value[key], want))
    if found:
        return [found[0]]
    for key, held in value.items() if deep else ():
        if isinstance(held, dict) and (below := _path_to_records(held, want, deep - 1)) is not None:
            return [key, *below]
    return None


def _is_object(held: list[object]) -> bool:
    return bool(held) and isinstance(held[0], dict)


def _fits(held: object, want: Wanted) -> bool:
    return isinstance(held, list) and isinstance(held[0], dict) and set(want.required) <= set(held[0])
