"""``--set a.b=c``: keys of the configuration overridden on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.config.keys import may_be_list_or_mapping, may_be_null, text_may_stand, type_at
from pipeline.errors import ConfigError
from pipeline.system.yaml_text import NotYaml, read_yaml

Place = tuple[int | str, ...]
_DOCUMENT_END = "\n..."
_STYLED = ("'", '"', "|", ">")


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[Place, str]:
    """Set every key in place; list items by number ("tasks.0.name=x"), or a task by its name
    ("tasks.topic.multi=true"). Returns which override says what stands at a place. Raises ConfigError.
    """
    said: dict[Place, str] = {}
    for override in overrides:
        place = _apply(raw, override)
        for earlier, words in said.items():
            if earlier[: len(place)] == place and words != override:
                raise ConfigError(
                    f"--set {override!r} takes back what --set {words!r} says; leave out one of them"
                )
        said[place] = override
    return said


def _apply(raw: dict[str, Any], override: str) -> Place:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r} is not of the form a.b=c")
    *path, last = key.strip().split(".")
    place: Place = ()
    node: Any = raw
    for part in path:
        step: Any = _step(node, part, override)
        place, node = (*place, step), node[step]
    holder: Any = node
    if not isinstance(node, dict | list):
        raise ConfigError(f"--set {override!r}: {'.'.join(path)} is a plain value and has no keys")
    found = _index(node, last, override) if isinstance(node, list) else last
    holder[found] = _value(text, type_at((*place, found), raw), override)
    return (*place, found)


def _value(text: str, annotation: Any, override: str) -> Any:
    """What ``text`` says for a key of that type. A text is taken as it is typed, unless it is in quotes; null
    is no text where the key may be null.
    """
    plain = text.removesuffix("\n").removesuffix(_DOCUMENT_END).strip()
    try:
        value = read_yaml(text).value
    except NotYaml as error:
        if annotation is None or text_may_stand(annotation):
            return plain
        raise ConfigError(f"--set {override!r:.200}: the value is not valid YAML: {error}") from None
    if annotation is None or not text_may_stand(annotation):
        return value
    if value is None and plain not in ("", "~") and may_be_null(annotation):
        return None
    listed = isinstance(value, list | dict) and ("\n" in plain or plain.startswith(("[", "{")))
    if listed and may_be_list_or_mapping(annotation):
        return value
    return value if isinstance(value, str) and plain.startswith(_STYLED) else plain


def _step(node: Any, part: str, override: str) -> int | str:
    """The key or number under which the next node lies; sections that are not there yet are begun."""
    if isinstance(node, list):
        return _index(node, part, override)
    if not isinstance(node, dict):
        raise ConfigError(f"--set {override!r}: nothing called {part!r} can lie inside a plain value")
    if node.get(part) is None:
        node[part] = {}
    return part


def _index(items: list[Any], part: str, override: str) -> int:
    for index, item in enumerate(items):
        if str(index) == part or (isinstance(item, dict) and item.get("name") == part):
            return index
    raise ConfigError(f"--set {override!r}: the list has no item {part!r}; it has {_told(items)}")


def _told(items: list[Any]) -> str:
    return ", ".join(_names(items)) or "none"


def _names(items: list[Any]) -> Iterator[str]:
    for index, item in enumerate(items):
        name = item.get("name") if isinstance(item, dict) else None
        yield f"{index} ({name})" if name else str(index)
