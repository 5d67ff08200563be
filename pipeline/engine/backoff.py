"""What to allow next after memory ran out: half as many rows, or the next rung of a ladder of ways to do the
same with less. Numbers only, no torch; ``out_of_memory`` tells which errors are meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


def halved(allowed: int, running: int, least: int = 1) -> int:
    """How many may run together after ``running`` of the ``allowed`` were too many; never below ``least``."""
    return max(least, min(allowed, running) // 2)


@dataclass(slots=True)
class RowLimits:
    """What out-of-memory taught: how many columns a batch may have in all rows together, however long they
    are.
    """

    _area: int | None = None

    def failed(self, columns: int, rows: int) -> None:
        """Memory ran out for ``rows`` rows of ``columns``: from now on such batches have at most half the
        rows (at least one), shorter ones as many more as they are shorter.
        """
        area = columns * halved(rows, rows)
        self._area = area if self._area is None else min(self._area, area)

    def rows(self, columns: int) -> int | None:
        """The most rows a batch of ``columns`` may have, None while nothing was learned."""
        return None if self._area is None else max(1, self._area // columns)


@dataclass(frozen=True, slots=True)
class Rung(Generic[T]):
    """One way to do a piece of work, and what it is called where people read of it."""

    name: str
    way: T


@dataclass(slots=True)
class Ladder(Generic[T]):
    """Ways to do one piece of work, each with less memory than the one before.

    Work as large as what failed on a rung starts below it; smaller work is tried on it again.
    """

    rungs: Sequence[Rung[T]]
    _too_large: dict[str, int] = field(default_factory=dict)  # by rung, the smallest size that did not fit

    def below(self, size: int) -> Iterator[Rung[T]]:
        """The rungs worth trying for work of ``size``, in order; what fails while they are tried counts."""
        for rung in self.rungs:
            limit = self._too_large.get(rung.name)
            if limit is None or size < limit:
                yield rung

    def failed(self, rung: Rung[T], size: int) -> None:
        """Remember that work of ``size`` did not fit on ``rung``."""
        self._too_large[rung.name] = min(size, self._too_large.get(rung.name, size))
