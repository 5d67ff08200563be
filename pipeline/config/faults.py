"""What is wrong with a configuration, a sentence each: where it stands, what it should be, what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pipeline.config.keys import Key, config_keys, in_words, text_may_stand, type_at
from pipeline.config.recorded import RETIRED, retired_key
from pipeline.config.sections import registered_kinds, why_no_kind

Place = tuple[int | str, ...]
_SHOWN_KEYS = 12
_OF_KEYS = ("missing", "extra_forbidden")
_TASKS = "tasks are a list, each item a section with a name and a kind"


@dataclass(frozen=True, slots=True)
class Written:
    """Where a configuration was written: a file with the line of each key, and what ``--set`` said
    instead.
    """

    origin: str
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    overrides: Mapping[Place, str] = field(default_factory=dict)

    def at(self, place: Place) -> str:
        """The nearest known place of what stands at ``place``, with a colon; "" where there is none."""
        for length in range(len(place), 0, -1):
            if (override := self.overrides.get(place[:length])) is not None:
                return f"--set {override!r:.200}: "
            if (line := self.lines.get(tuple(map(str, place[:length])))) is not None:
                return f"{self.origin}, line {line}: "
        return f"{self.origin}: " if self.lines else ""


def told(written: Written, faults: Iterable[tuple[Place, str]]) -> str:
    """One message of all faults, each at its place."""
    lines = [f"  {written.at(place)}{shown(place)}: {said}" for place, said in faults]
    return f"{written.origin} is not valid:\n" + "\n".join(dict.fromkeys(lines))


def shown(place: Place) -> str:
    """``tasks[1].labels``."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(top level)"


def faults_of(error: ValidationError, raw: Any) -> Iterator[tuple[Place, str]]:
    """Each fault with its place in ``raw``. A value that is none of several types is one fault."""
    placed = [
        (_as_written(fault["loc"], raw, of_a_key=fault["type"] in _OF_KEYS), fault)
        for fault in error.errors()
    ]
    for place, fault in placed:
        inner = any(len(other) > len(place) and other[: len(place)] == place for other, _ in placed)
        if not inner or fault["type"] == "value_error":
            yield place, _sentence(fault, place, raw)


def _as_written(location: Place, raw: Any, *, of_a_key: bool) -> Place:
    """``location`` as the file has it: without the validator's words for the members of a union and for
    keys. ``of_a_key``: its last part is a key, whether it is there or not.
    """
    place: list[int | str] = []
    node = raw
    for index, part in enumerate(location):
        if _is_kind(location, index, raw):
            continue
        last = index == len(location) - 1
        if isinstance(node, Mapping) and (part in node or (of_a_key and last)):
            place.append(part)
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            place.append(part)
            node = node[part]
    return tuple(place)


def _is_kind(location: Place, index: int, raw: Any) -> bool:
    """Whether the part is what a task is told apart by: it stands behind the task's number."""
    if index != 2 or location[0] != "tasks" or not isinstance(location[1], int):
        return False
    task = raw["tasks"][location[1]]
    return isinstance(task, Mapping) and task.get("kind") == location[2]


def _sentence(fault: ErrorDetails, place: Place, raw: Any) -> str:
    kind, given = fault["type"], fault["input"]
    match kind:
        case "value_error":
            return str(fault["msg"]).removeprefix("Value error, ")
        case "union_tag_not_found":
            return f"the key kind is required; there are {', '.join(registered_kinds())}"
        case "union_tag_invalid":
            named = str(fault["ctx"]["tag"])
            return why_no_kind(named) + _meant(named, registered_kinds())
        case "invalid-json-value":
            return f"{given!r:.80} was read as {type(given).__name__}; put it in quotes"
        case "extra_forbidden":
            return RETIRED.get(retired_key(place)) or _unknown(place, raw)
        case "missing":
            return "this key is required"
        case "string_too_short" | "too_short":
            return "it is empty; at least 1 is needed"
    if place[:1] == ("tasks",) and len(place) <= 2:
        return f"{_TASKS}, not {given!r:.80}"
    return _wrong_type(given, type_at(place, raw), str(fault["msg"]))


def _wrong_type(given: Any, annotation: Any, said: str) -> str:
    if annotation is None:
        return f"{said} (found {given!r:.80})"
    wanted = in_words(annotation)
    if wanted == "section":
        wanted = "a section, whose keys stand below it"
    quotes = text_may_stand(annotation) and not isinstance(given, str | list | dict | None)
    remedy = "; put it in quotes" if quotes else ""
    instead = "; it is empty" if given is None else f", not {given!r:.80}"
    return f"it must be {wanted}{instead}{remedy}{_meant(given, wanted.replace(' or ', ', ').split(', '))}"


# ── what was meant ──────────────────────────────────────────────────────────────────────────────────────────


def _unknown(place: Place, raw: Any) -> str:
    """Of an unknown key: the one like it beside it, or that of its name elsewhere."""
    name, section = str(place[-1]), retired_key(place[:-1]).replace(".*", "[]")
    kind = _kind_of_task(place, raw)
    beside: dict[str, Key | None] = {}
    elsewhere: dict[str, Key | None] = {}
    for key in config_keys():
        parent, _, last = key.key.rpartition(".")
        of_this = parent == section and key.of in ("", kind)
        (beside if of_this else elsewhere).setdefault(last, key)
    beside.update(dict.fromkeys(_subsections(section)))
    close = difflib.get_close_matches(name, beside, n=1, cutoff=0.6)
    if close:
        return f"unknown key; did you mean {close[0]}?"
    if (other := elsewhere.get(name)) is not None:
        of = f" of tasks of kind {other.of}" if other.of else ""
        return f"unknown key here; there is {other.key}{of}"
    known = sorted(beside)
    more = ", …" if len(known) > _SHOWN_KEYS else ""
    return f"unknown key; known are {', '.join(known[:_SHOWN_KEYS])}{more} (overnight keys explains them)"


def _kind_of_task(place: Place, raw: Any) -> str:
    if len(place) > 2 and place[0] == "tasks" and isinstance(place[1], int):
        return str(raw["tasks"][place[1]].get("kind", ""))
    return ""


def _subsections(section: str) -> list[str]:
    """Names of the sections that lie in one."""
    below = f"{section}." if section else ""
    paths = (key.key.removeprefix(below) for key in config_keys() if key.key.startswith(below))
    return list(dict.fromkeys(path.split(".")[0].removesuffix("[]") for path in paths if "." in path))


def _meant(given: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(given), list(known), n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close and isinstance(given, str) else ""
