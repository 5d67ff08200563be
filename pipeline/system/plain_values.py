"""Plain values that come back as they were from YAML, JSON, a ledger and a message to a worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

Place = tuple[int | str, ...]
_LEAST, _BEYOND = -(2**63), 2**64  # what a message can carry


class YamlLoader(yaml.SafeLoader):
    """Reads YAML, and JSON as JSON means it: a character beyond 16 bits may stand there as the two halves of
    it, of which YAML makes two characters that are none.
    """

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """The text of ``node``."""
        return _joined(str(super().construct_scalar(node)))


def read_yaml(text: str) -> Any:
    """The plain values that ``text`` says. Raises yaml.YAMLError, ValueError, RecursionError."""
    loader = YamlLoader(text)  # as yaml.load does it, which could be given an unsafe one
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def what_is_lost(value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Each text and number in ``value`` that could not be sent or written, with its place and a sentence."""
    match value:
        case str() if not _is_text(value):
            yield place, f"{value!a:.80} is no text: it holds half a character"
        case int() if not _LEAST <= value < _BEYOND:
            yield place, "the number is too large: 64 bits hold it no more"
        case Mapping():
            for key, item in value.items():
                yield from what_is_lost(key, (*place, str(key)))
                yield from what_is_lost(item, (*place, str(key)))
        case list() | tuple():
            for index, item in enumerate(value):
                yield from what_is_lost(item, (*place, index))


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _joined(text: str) -> str:
    """``text`` with its halves put together; as it is, where one of them has no other."""
    try:
        return text if _is_text(text) else text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return text
