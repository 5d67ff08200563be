"""Arguments of the flows' scripts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class Once(argparse.Action):
    """An option that stands once: a second one would silently take the place of the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Keep the value."""
        seen: frozenset[str] = getattr(namespace, "_given_once", frozenset())
        if self.dest in seen:
            parser.error(f"{option_string} stands twice; give it once")
        namespace._given_once = seen | {self.dest}  # noqa: SLF001  # a note of ours, in a place made for notes
        setattr(namespace, self.dest, values)
