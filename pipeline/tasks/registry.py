"""The kinds of task that there are: our own, those of installed packages, and those that a test adds.

A package adds a kind by an entry point of the group ``overnight.kinds`` that names a ``TaskKind``; our own
are named the same way, in the table below, so that they are found without an installation.
"""

from __future__ import annotations

import importlib.metadata
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, get_args

from pipeline.config import Config, TaskSection
from pipeline.errors import ConfigError
from pipeline.tasks.answers import Answers, Column
from pipeline.tasks.base import Setting, Task

__all__ = [
    "Column",
    "TaskKind",
    "answers_of",
    "broken_kinds",
    "columns_of",
    "kind_of",
    "kinds",
    "registered",
    "why_not",
]

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
_broken: dict[str, str] = {}


def kinds() -> Mapping[str, TaskKind]:
    """Every kind that can be used, by its name, our own first. Installed ones that cannot hinder nobody who
    does not ask for them.
    """
    if not _known:
        _known.update({name: pkgutil.resolve_name(place) for name, place in _OURS.items()})
        _look_around()
    return _known


def broken_kinds() -> Mapping[str, str]:
    """Names of installed kinds that cannot be used, each with the reason, a sentence."""
    kinds()
    return _broken


def kind_of(name: str) -> TaskKind:
    """The kind of that name. Raises ConfigError."""
    found = kinds().get(name)
    if found is None:
        raise ConfigError(why_not(name))
    return found


def why_not(name: str) -> str:
    """Why there is no kind of that name, a sentence."""
    if name in broken_kinds():
        return _broken[name]
    return f"there is no kind of task {name!r} here; there are {', '.join(kinds())}"


def answers_of(name: str) -> Answers:
    """What the kind says of its answers; those of a kind that is not installed any more are just texts."""
    found = kinds().get(name)
    if found is None:
        return _PLAIN
    if not isinstance(found.answers, str):
        return found.answers
    try:
        made: Answers = pkgutil.resolve_name(found.answers)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"what shows answers of the kind {name!r} cannot be loaded: {error}") from error
    return made


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


def _look_around() -> None:
    """Take in what packages have installed."""
    points = importlib.metadata.entry_points(group=GROUP)
    several = Counter(point.name for point in points)
    for point in points:
        try:
            kind = _installed(point, alone=several[point.name] == 1)
        except ConfigError as error:
            _broken[point.name] = str(error)
        else:
            _known[point.name] = kind


def _installed(point: importlib.metadata.EntryPoint, *, alone: bool) -> TaskKind:
    whose = f"the kind of task {point.name!r} of {point.dist.name if point.dist else 'a package'}"
    if point.name in _OURS:
        raise ConfigError(f"{whose} has the name of one of our own; rename it, or uninstall it")
    if not alone:
        raise ConfigError(f"{whose} has the name of another package's; uninstall one of them")
    try:
        kind = point.load()
    except (Exception, SystemExit) as error:  # anything may be wrong with a stranger's module
        raise ConfigError(f"{whose} cannot be loaded: {error!r}") from error
    if not (isinstance(kind, TaskKind) and kind.name == point.name and _is_whole(kind)):
        raise ConfigError(f"{whose}: {point.value} is no TaskKind of that name")
    return kind


def _is_whole(kind: TaskKind) -> bool:
    """Whether the configuration can tell it from others: locks and flows are called by its name, and its
    section has that name as its only ``kind``.
    """
    if not (
        isinstance(kind.section, type) and issubclass(kind.section, TaskSection) and callable(kind.build)
    ):
        return False
    asked = get_args(kind.section.model_fields["kind"].annotation)
    return asked == (kind.name,) and bool(re.fullmatch(r"[A-Za-z][\w-]*", kind.name, re.ASCII))
