"""What changed between two identities of a task, as lines a person can read."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.stores.ledger.same_task import told_apart_by

_LONG = 60


def describe_change(task: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The changed keys by dotted path, old → new; long texts as the lines that differ."""
    lines = [f"task {task!r}:"]
    before, after = (dict(_flat(identity)) for identity in told_apart_by(old, new))
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            lines += [f"  {line}" for line in _change(path, before.get(path), after.get(path))]
    return "\n".join(lines)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _change(path: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, str) and isinstance(new, str) and max(len(old), len(new)) > _LONG:
        before, after = _words_a_line(old), _words_a_line(new)
        differing = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
        return [f"{path}:", *(f"  {line}" for line in differing)]
    return [f"{path}: {_shown(old)} → {_shown(new)}"]


def _words_a_line(text: str) -> list[str]:
    """Lines of a text, long ones cut at sentences, so that one changed word shows one sentence."""
    return [piece for line in text.splitlines() for piece in line.replace(". ", ".\n").split("\n")]


def _shown(value: Any) -> str:
    return "(not set)" if value is None else json.dumps(value, ensure_ascii=False)
