"""The kinds of task that there are: our own, those of installed packages, and those that a test adds.

A package adds a kind by an entry point of the group ``overnight.kinds`` that names a ``TaskKind``; our own
are named the same way, in the table below, so that they are found without an installation.
"""

from __future__ import annotations

import importlib.metadata
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pipeline.config import Config, TaskSection
from pipeline.errors import ConfigError
from pipeline.tasks.answers import Answers, Column
from pipeline.tasks.base import Setting, Task

__all__ = ["Column", "TaskKind", "answers_of", "columns_of", "kind_of", "kinds", "registered"]

GROUP = "overnight.kinds"
_OURS = {"summarize": "pipeline.tasks.summarize:KIND", "label": "pipeline.tasks.label:KIND"}
_PLAIN = Answers()


@dataclass(frozen=True)
class TaskKind:
    """All that the rest of the program knows of a kind.

    ``section``: its keys of the configuration, with a Literal ``kind``. ``build``: the task of such a
    section, over a model's tokenizer and context; it raises ConfigError. ``does``: what a flow of it does, as
    in "Write a summary of every document". ``columns``: what the export has beside the answer. ``answers``:
    an ``Answers``, or the name (``module:class``) of one that is only loaded where answers are shown.
    """

    name: str
    section: type[TaskSection]
    build: Callable[[Any, Setting, dict[str, Any]], Task]
    does: str
    writes_text: bool = False
    columns: tuple[Column, ...] = ()
    answers: Answers | str = field(default=_PLAIN)

    @property
    def endings(self) -> tuple[str, ...]:
        """Of the names of its further columns."""
        return tuple(column.ending for column in self.columns)


_known: dict[str, TaskKind] = {}


def kinds() -> Mapping[str, TaskKind]:
    """Every kind by its name, our own first. Raises ConfigError where an installed one cannot be loaded."""
    if not _known:
        found = {name: pkgutil.resolve_name(place) for name, place in _OURS.items()}
        for point in importlib.metadata.entry_points(group=GROUP):
            found[point.name] = _installed(point, taken=point.name in _OURS)
        _known.update(found)
    return _known


def kind_of(name: str) -> TaskKind:
    """The kind of that name. Raises ConfigError."""
    found = kinds().get(name)
    if found is None:
        raise ConfigError(f"there is no kind of task {name!r} here; there are {', '.join(kinds())}")
    return found


def answers_of(name: str) -> Answers:
    """What the kind says of its answers; those of a kind that is not installed any more are just texts."""
    found = kinds().get(name)
    if found is None:
        return _PLAIN
    if isinstance(found.answers, str):
        made: Answers = pkgutil.resolve_name(found.answers)()
        return made
    return found.answers


def columns_of(name: str) -> tuple[Column, ...]:
    """The kind's further columns; none of one that is not installed any more."""
    found = kinds().get(name)
    return () if found is None else found.columns


@contextmanager
def registered(kind: TaskKind) -> Iterator[None]:
    """``kind`` is there, too, for as long as this lasts."""
    kinds()
    assert kind.name not in _known, f"there is a kind {kind.name!r} already"
    _known[kind.name] = kind
    Config.model_rebuild(force=True)
    try:
        yield
    finally:
        del _known[kind.name]
        Config.model_rebuild(force=True)


def _installed(point: importlib.metadata.EntryPoint, *, taken: bool) -> TaskKind:
    whose = f"the kind of task {point.name!r} of {point.dist.name if point.dist else 'a package'}"
    if taken:
        raise ConfigError(f"{whose} has the name of one of our own; rename it, or uninstall it")
    try:
        kind = point.load()
    except Exception as error:  # anything may be wrong with a stranger's module
        raise ConfigError(f"{whose} cannot be loaded: {error!r}") from error
    if not isinstance(kind, TaskKind) or kind.name != point.name:
        raise ConfigError(f"{whose}: {point.value} is no TaskKind of that name")
    return kind
