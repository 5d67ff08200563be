"""YAML as people write it: every key once, every fault with its line.

What YAML 1.1 would be surprised by is text here: ``22:30`` is a time of day, not 1,350 (as in YAML 1.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import ConfigError
from pipeline.system.plain_values import joined_halves

Place = tuple[str, ...]
"""Keys and numbers of items, as text, from the top of a document to what stands there."""

_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


@dataclass(frozen=True, slots=True)
class YamlText:
    """What a text says, in plain values, and in which line (from 1) each key and each item of a list
    stands.
    """

    value: Any
    lines: Mapping[Place, int]


class NotYaml(ValueError):
    """The text is no YAML, or gives a key twice. ``faults``: line (None: of no one line) and sentence of
    each.
    """

    def __init__(self, *faults: tuple[int | None, str]) -> None:
        super().__init__("; ".join(f"line {line}: {said}" if line else said for line, said in faults))
        self.faults = faults


class _Loader(yaml.SafeLoader):
    """Reads YAML, and JSON as JSON means it: a character beyond 16 bits may stand there as the two halves of
    it, of which YAML makes two characters that are none.
    """

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of a node; numbers to the base of 60 are text."""
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]  # not in the stubs
        return "tag:yaml.org,2002:str" if tag in _NUMBERS and ":" in str(value) else tag

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """The text of ``node``."""
        return joined_halves(str(super().construct_scalar(node)))

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of ``node``; one that looks like a date or a number and is none has its place."""
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as error:
            said = f"{node.value!r:.40} is no value of its kind ({error}); put it in quotes if it is a text"
            raise yaml.constructor.ConstructorError(None, None, said, node.start_mark) from None


def read_yaml(text: str) -> YamlText:
    """What ``text`` says. Raises NotYaml."""
    try:
        loader = _Loader(text)
        try:
            return _read(loader)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotYaml((mark.line + 1 if mark else None, f"this is no valid YAML: {_told(error)}")) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise NotYaml((line, f"a character {error.character!r} cannot stand in YAML")) from None
    except RecursionError:
        raise NotYaml((None, "it is nested too deeply")) from None


def read_yaml_file(path: Path, what: str) -> YamlText:
    """What a file says; ``what`` is it, as in "configuration file". Raises ConfigError, with the line of each
    fault.
    """
    try:
        return read_yaml(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} {path}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; name the YAML file in it") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}, line {line}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror or error}") from None
    except NotYaml as error:
        raise ConfigError("\n".join(_at(path, line, said) for line, said in error.faults)) from None


def _at(path: Path, line: int | None, said: str) -> str:
    return f"{path}, line {line}: {said}" if line else f"{path}: {said}"


def _read(loader: _Loader) -> YamlText:
    root = loader.get_single_node()
    if root is None:
        return YamlText(None, {})
    walk = _Walk(loader)
    lines = dict(walk.lines(root, ()))
    if walk.repeated:
        raise NotYaml(*walk.repeated)
    return YamlText(loader.construct_document(root), lines)


class _Walk:
    """Once over all nodes: where they stand, and which keys are ``repeated``."""

    def __init__(self, loader: _Loader) -> None:
        self.repeated: list[tuple[int | None, str]] = []
        self._loader = loader
        self._seen: set[int] = set()  # what aliases stand for is looked at in its first place alone

    def lines(self, node: yaml.Node, place: Place) -> Iterator[tuple[Place, int]]:
        """The line of each key and item below ``node``, by place."""
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                yield (*place, str(index)), _line(item)
                yield from self.lines(item, (*place, str(index)))
        elif isinstance(node, yaml.MappingNode):
            yield from self._keys(node, place)

    def _keys(self, node: yaml.MappingNode, place: Place) -> Iterator[tuple[Place, int]]:
        first: dict[object, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue  # no key of a configuration: it is refused for that
            key = key_node.value if key_node.tag == _MERGE else self._loader.construct_object(key_node)
            line = _line(key_node)
            if key in first:
                said = (
                    f"the key {key_node.value!r} stands twice, first in line {first[key]}; keep one of them"
                )
                self.repeated.append((line, said))
            first.setdefault(key, line)
            yield (*place, str(key)), line
            yield from self.lines(value_node, (*place, str(key)))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _told(error: yaml.MarkedYAMLError) -> str:
    """The library's words, without the text that it quotes."""
    said = ": ".join(part for part in (error.context, error.problem) if part)
    if "'\\t'" in said:
        return f"{said}; YAML is indented by spaces"
    if isinstance(error, yaml.constructor.ConstructorError):
        return said
    return f"{said}; a text that begins with * & ! % @ [ {{ or holds ': ' or ' #' goes in quotes"
