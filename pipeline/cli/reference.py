"""Every key of the configuration with what it may be, its default and what it means, read off the models that
check the file: ``overnight keys``, and ``configs/REFERENCE.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pipeline.config import RETIRED, Config
from pipeline.errors import UsageError
from pipeline.system.units import parse_bytes
from pipeline.tasks.registry import kinds

_WORDS: Mapping[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    NoneType: "null",
    Any: "anything",
}
_BOUNDS = {Ge: "at least {ge}", Gt: "above {gt}", Le: "at most {le}", Lt: "below {lt}"}
_UNITS = {"GiB": 2**30, "MiB": 2**20, "GB": 10**9, "MB": 10**6}
_HEADER = """# Every key of the configuration

`overnight keys` prints what stands here, `overnight keys kv_cache` a part of it, `--json` all of it for
programs. `--set key=value` overrides a key, that of a task by its name (`--set tasks.topic.multi=true`).
A size is bytes, or a number with a unit: `7GiB`, `20GB`. Unknown keys are refused. Complete configurations:
[demo](demo.yaml), [8 GB card](gpu-8gb.yaml), [24 GB card](gpu-24gb.yaml).
"""


@dataclass(frozen=True)
class Key:
    """A key by its dotted path, ``tasks[]`` for what stands in a list. ``default`` is YAML; "required" where
    there is none. ``of``: the kind of task that has it; empty for keys of all.
    """

    key: str
    values: str
    default: str
    meaning: str
    of: str = ""


def config_keys() -> list[Key]:
    """Every key, in the order of the models."""
    return list(_keys(Config, ""))


def _keys(section: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, info in section.model_fields.items():
        if prefix == "" and name == "tasks":
            yield from _task_keys()
            continue
        inner = list(_sections(info.annotation))
        if inner != [info.annotation]:
            yield _key(prefix + name, info)
        listed = "[]" if inner and _lists(info.annotation) else ""
        for each in inner:
            yield from _keys(each, f"{prefix}{name}{listed}.")


def _task_keys() -> Iterator[Key]:
    """Keys that all kinds have in common first; then those of each kind."""
    does = "; ".join(
        f"{name}: {kind.section.model_fields['kind'].description}" for name, kind in kinds().items()
    )
    yield Key("tasks[].kind", _or(kinds()), "required", does)
    found = {name: list(_keys(kind.section, "tasks[].")) for name, kind in kinds().items()}
    common = [key for key in next(iter(found.values())) if all(key in keys for keys in found.values())]
    yield from common
    for name, keys in found.items():
        yield from (replace(key, of=name) for key in keys if key not in common and key.key != "tasks[].kind")


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a value may be or hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from _sections(part)


def _lists(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(_lists(part) for part in get_args(annotation))


def _key(path: str, info: FieldInfo) -> Key:
    values = _values(Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation)
    return Key(path, values, _default(info, size="size" in values), info.description or "")


def _values(annotation: Any) -> str:
    """What a value may be, in words."""
    if annotation in _WORDS:
        return _WORDS[annotation]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _or(parts)
    if origin in (Union, UnionType):
        return _or(map(_values, parts))
    if origin is Annotated:
        return _bounded(parts[0], parts[1:])
    if origin is list:
        return f"list of {_values(parts[0])}"
    return "mapping" if origin is dict else "section"


def _or(values: Iterable[str]) -> str:
    *most, last = values
    return f"{', '.join(most)} or {last}" if most else last


def _bounded(annotation: Any, metadata: tuple[Any, ...]) -> str:
    if any(isinstance(each, BeforeValidator) and each.func is parse_bytes for each in metadata):
        return "size"
    bounds = [_BOUNDS[type(each)].format(**asdict(each)) for each in metadata if type(each) in _BOUNDS]
    return ", ".join([_values(annotation), *bounds])


def _default(info: FieldInfo, *, size: bool) -> str:
    value = info.default
    if value is PydanticUndefined:
        return "required"
    if size and value:
        return _size(value)
    return value if isinstance(value, str) and value.strip() else json.dumps(value, ensure_ascii=False)


def _size(count: int) -> str:
    unit = next((unit for unit, factor in _UNITS.items() if count % factor == 0), "")
    return f"{count // _UNITS.get(unit, 1)}{unit}"


def chosen(keys: list[Key], begin: str | None) -> list[Key]:
    """The keys at or below a dotted path, with or without its list marks. Raises UsageError where there is
    none.
    """
    wanted = (begin or "").replace("[]", "")
    found = [
        key for key in keys if f"{key.key}.".replace("[]", "").startswith(f"{wanted}." if wanted else "")
    ]
    if begin in RETIRED:
        raise UsageError(f"{begin}: {RETIRED[begin]}")
    if not found:
        raise UsageError(f"there is no key {begin!r}; overnight keys prints all of them")
    return found


def text_lines(keys: list[Key]) -> list[str]:
    """For a terminal: each key with its default and values, and under it what it means."""
    return [
        line
        for key in keys
        for line in (
            f"{key.key}: {key.default}" + (f"   (kind: {key.of})" if key.of else ""),
            f"    {key.values}",
            f"    {_sentence(key.meaning)}",
        )
    ]


def to_json(keys: list[Key]) -> dict[str, Any]:
    """The keys as plain values."""
    return {"keys": [asdict(key) for key in keys]}


def markdown(keys: list[Key]) -> list[str]:
    """Lines of the page: a table for each section, tasks by their kind."""
    parts: dict[tuple[str, str], list[Key]] = {}
    for key in keys:
        parts.setdefault((key.key.split(".")[0].removesuffix("[]"), key.of), []).append(key)
    return [*_HEADER.splitlines(), *(line for part in parts.items() for line in _table(*part))]


def _table(part: tuple[str, str], keys: list[Key]) -> list[str]:
    name, kind = part
    return [
        "",
        f"## {name}" + (f", kind: {kind}" if kind else ""),
        "",
        "| Key | Value | Default | Meaning |",
        "|---|---|---|---|",
        *(
            f"| `{key.key}` | {key.values} | {_code(key.default)} | {_sentence(key.meaning)} |".replace(
                "\n", " "
            )
            for key in keys
        ),
    ]


def _code(default: str) -> str:
    return default if default == "required" else f"`{default}`"


def _sentence(meaning: str) -> str:
    """With a capital and a full stop; what begins with a value keeps that as it is written."""
    begins_with_value = meaning.split(" ", 1)[0].endswith(":")
    return f"{meaning if begins_with_value else meaning[:1].upper() + meaning[1:]}."
