"""What all commands do with their arguments: what a person gave is used or refused.

An option that is not made for several values stands once; one that says nothing without another, or beside
another, is refused; ``~`` in a path is a home also where the shell leaves it (``--output=~/x``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from pipeline.errors import UsageError

Options = Mapping[str, Sequence[str]]
"""Names of parameters, each with those of others."""


class Command(TyperCommand):
    """``needs``: options with those of which one must stand beside them; ``alone``: options with those that
    say nothing beside them.
    """

    needs: ClassVar[Options] = {}
    alone: ClassVar[Options] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments. Raises UsageError."""
        given = self.make_parser(ctx).parse_args(args=list(args))[2]
        self._refuse_repeated(given)
        left = super().parse_args(ctx, args)
        ctx.params.update({name: _at_home(value) for name, value in ctx.params.items()})
        self._refuse_idle({param.name for param in given if ctx.params.get(param.name) is not None})
        return left

    def _refuse_repeated(self, given: Sequence[Any]) -> None:
        for param in given:
            times = given.count(param)
            if times > 1 and not (param.multiple or param.is_flag):
                raise UsageError(f"{_spoken(param)} stands {times} times; give it once")

    def _refuse_idle(self, names: set[str]) -> None:
        spoken = {str(param.name): _spoken(param) for param in self.params}
        for name, others in self.needs.items():
            if name in names and not names & set(others):
                needed = " or ".join(spoken[other] for other in others)
                raise UsageError(f"{spoken[name]} says nothing without {needed}")
        for name, others in self.alone.items():
            beside = next((other for other in others if {name, other} <= names), None)
            if beside:
                raise UsageError(
                    f"{spoken[beside]} says nothing beside {spoken[name]}; leave out one of the two"
                )


class Commands(typer.Typer):
    """A command line of ``Command``s."""

    def command(
        self,
        name: str | None = None,
        *,
        needs: Options | None = None,
        alone: Options | None = None,
        **given: Any,
    ) -> Callable[[Any], Any]:
        """As the library has it; see ``Command``."""
        kind = type("Command", (Command,), {"needs": needs or {}, "alone": alone or {}})
        return super().command(name, cls=kind, **given)


def _spoken(param: Any) -> str:
    """How people write it."""
    long = max(map(str, param.opts), key=len)
    return long if long.startswith("-") else str(param.metavar or param.name)


def _at_home(value: Any) -> Any:
    if isinstance(value, list):
        return [_at_home(item) for item in value]
    return value.expanduser() if isinstance(value, Path) else value
