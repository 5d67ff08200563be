"""Every key with what it may be, its default and what it means, read off the models that check the file."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pipeline.config.paths import path_mark, type_of
from pipeline.config.sections import Config, registered_kinds
from pipeline.system.units import parse_bytes

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
    return list(_all_keys(tuple(registered_kinds())))


@functools.cache
def _all_keys(_: tuple[str, ...]) -> tuple[Key, ...]:
    """With kinds of task of these names."""
    return tuple(_keys(Config, ""))


def type_at(place: Sequence[int | str], raw: Any) -> Any:
    """The type of what stands at ``place`` of a configuration that says ``raw``; None where nothing may stand
    there, or anything.
    """
    return _type_at(Config, place, raw)


def _type_at(annotation: Any, place: Sequence[int | str], raw: Any) -> Any:
    if not place:
        return annotation
    head, rest = place[0], place[1:]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(head))
        if field is None:
            return None
        if annotation is Config and head == "tasks":
            return _type_in_task(rest, raw)
        return _type_at(type_of(field), rest, raw)
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _type_at(parts[0], place, raw)
    if get_origin(annotation) in (Union, UnionType):
        return next((found for part in parts if (found := _type_at(part, place, raw)) is not None), None)
    if get_origin(annotation) is list and isinstance(head, int):
        return _type_at(parts[0], rest, raw)
    return _type_at(parts[1], rest, raw) if get_origin(annotation) is dict else None


def _type_in_task(place: Sequence[int | str], raw: Any) -> Any:
    """What stands in a task is a matter of its kind."""
    try:
        kind = raw["tasks"][place[0]]["kind"]
        return _type_at(registered_kinds()[kind].section, place[1:], raw)
    except (LookupError, TypeError):
        return None


def text_may_stand(annotation: Any) -> bool:
    """Whether a text, whatever it says, is of that type or is refused with what the key may be."""
    if get_origin(annotation) is Annotated:
        sized = any(isinstance(mark, BeforeValidator) for mark in get_args(annotation)[1:])
        return not sized and text_may_stand(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return any(map(text_may_stand, get_args(annotation)))
    return (
        annotation is str
        or hasattr(annotation, "short_form")
        or (
            get_origin(annotation) is Literal
            and all(isinstance(value, str) for value in get_args(annotation))
        )
    )


def may_be_null(annotation: Any) -> bool:
    """Whether null is of that type."""
    return NoneType in _members(annotation)


def may_be_list_or_mapping(annotation: Any) -> bool:
    """Whether a list, a mapping or a section is of that type."""
    return any(
        get_origin(part) in (list, dict) or (isinstance(part, type) and issubclass(part, BaseModel))
        for part in _members(annotation)
    )


def _members(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for part in get_args(annotation) for member in _members(part)]
    return [annotation]


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
        f"{name}: {kind.section.model_fields['kind'].description}"
        for name, kind in registered_kinds().items()
    )
    yield Key("tasks[].kind", _or(registered_kinds()), "required", does)
    found = {name: list(_keys(kind.section, "tasks[].")) for name, kind in registered_kinds().items()}
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
    values = in_words(type_of(info))
    return Key(path, values, _default(info, size="size" in values), info.description or "")


def in_words(annotation: Any) -> str:
    """What a value may be, in words."""
    if path_mark(annotation) is not None:
        return "path"
    if annotation in _WORDS:
        return _WORDS[annotation]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _or(parts)
    if origin in (Union, UnionType):
        return _or(map(in_words, parts))
    if origin is Annotated:
        return _bounded(parts[0], parts[1:])
    if origin is list:
        return f"list of {in_words(parts[0])}"
    return "mapping" if origin is dict else "section"


def _or(values: Iterable[str]) -> str:
    *most, last = values
    return f"{', '.join(most)} or {last}" if most else last


def _bounded(annotation: Any, metadata: tuple[Any, ...]) -> str:
    if any(isinstance(each, BeforeValidator) and each.func is parse_bytes for each in metadata):
        return "size"
    bounds = [_BOUNDS[type(each)].format(**asdict(each)) for each in metadata if type(each) in _BOUNDS]
    return ", ".join([in_words(annotation), *bounds])


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
