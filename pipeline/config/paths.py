"""Places on the disk that a configuration names, all treated alike.

``~`` and ``~user`` are home directories, ``$NAME`` and ``${NAME}`` variables of the environment (``$$`` is a
dollar sign), and what is relative starts at the folder in which the command is run. Which keys are paths is
said once, by their type: ``FilePath``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, PlainSerializer
from pydantic.fields import FieldInfo

_VARIABLE = re.compile(r"\$(?:\$|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_Section = TypeVar("_Section", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class PathMark:
    """Of a type whose texts are paths, or addresses; with ``or_name`` only those of them that there are, the
    others being names of something else.
    """

    or_name: bool = False


def _expanded(path: str) -> str:
    if not path.strip() or "\0" in path:
        raise ValueError("it names no file or folder")
    found = _VARIABLE.sub(_of_environment, path)
    if not found.startswith("~"):
        return found
    try:
        return str(Path(found).expanduser())
    except RuntimeError:
        raise ValueError(
            f"the home directory of {Path(found).parts[0]} is not known here; write the whole path"
        ) from None


def _of_environment(match: re.Match[str]) -> str:
    name = match[1] or match[2]
    if name is None:
        return "$"
    value = os.environ.get(name)
    if not value:
        raise ValueError(
            f"the environment variable {name} is not set; set it, or write $$ for a plain dollar sign"
        )
    return value


def as_written(path: str) -> str:
    """``path``, which is meant as it is, as a configuration says it."""
    return path.replace("$", "$$")


FilePath = Annotated[str, AfterValidator(_expanded), PlainSerializer(as_written), PathMark()]
"""A key that names a file or folder, a pattern of them, or an address."""
FolderOrName = Annotated[str, AfterValidator(_expanded), PlainSerializer(as_written), PathMark(or_name=True)]
"""A key that names a folder, or something that is known elsewhere by that name."""


def absolute_path(path: str) -> str:
    """A local path made absolute; addresses stay as they are."""
    return path if "://" in path or "::" in path else str(Path(path).absolute())


def with_paths(section: _Section, change: Callable[[str], str]) -> _Section:
    """``section`` with every path in it changed, those of the sections in it, too."""
    fields = type(section).model_fields
    changed = {name: _changed(getattr(section, name), type_of(info), change) for name, info in fields.items()}
    return section.model_copy(update=changed)


def type_of(info: FieldInfo) -> Any:
    """The whole type of a key: what it was declared with."""
    return Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation


def path_mark(annotation: Any) -> PathMark | None:
    """That of a type whose texts are paths."""
    marks = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, PathMark)), None)


def _changed(value: Any, annotation: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, BaseModel):
        return with_paths(value, change)
    if isinstance(value, str) and (mark := path_mark(annotation)) is not None:
        return value if mark.or_name and not Path(value).is_dir() else change(value)
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _changed(value, parts[0], change)
    if get_origin(annotation) in (Union, UnionType):
        return next((found for part in parts if (found := _changed(value, part, change)) != value), value)
    if get_origin(annotation) is list and isinstance(value, list):
        return [_changed(item, parts[0], change) for item in value]
    if get_origin(annotation) is dict and isinstance(value, dict):
        return {key: _changed(item, parts[1], change) for key, item in value.items()}
    return value
