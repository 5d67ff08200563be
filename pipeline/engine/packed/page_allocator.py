"""Who has which pages of KV memory: pure ints, the same for processors and cards.

A sequence gets its pages as one run, side by side, because attention reads keys without block tables then: a
kernel is told where a run starts and how much of it counts (``varlen_attn`` with ``seqused_k``), a view needs
no copy. Runs of mixed lengths leave holes; where there is room in all but no hole is long enough, those runs
are moved that cost least. The pool that holds the numbers carries the moves out.
"""

from __future__ import annotations

from dataclasses import dataclass

COMPACT_BELOW = 0.85
"""Share of the pool that is in use, from which on no run is moved for a newcomer that could as well wait.

Measured over 10,000 arrivals and departures of mixed lengths (``tests/engine/packed/``): without moves 0.78
of the pool are in use; up to 0.85 with them 0.92, and a page is moved for each page that is given out; up to
1.0 0.96, and 3.4 are.
"""


@dataclass(slots=True, eq=False)
class Run:
    """``pages`` pages from ``start`` on. Moves change ``start``: it is looked up for each pass."""

    start: int
    pages: int

    @property
    def end(self) -> int:
        """The page behind it."""
        return self.start + self.pages


@dataclass(frozen=True, slots=True)
class Move:
    """What lies in ``pages`` pages from ``source`` on goes to ``target``, lower; both may overlap."""

    source: int
    target: int
    pages: int


class PageAllocator:
    """``pages`` in all; ``used`` of them are given out."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.used = 0
        self._runs: list[Run] = []  # by place
        self._moves: list[Move] = []

    @property
    def free(self) -> int:
        """Pages that nobody has."""
        return self.pages - self.used

    @property
    def runs(self) -> tuple[Run, ...]:
        """All that are given out, by place."""
        return tuple(self._runs)

    def fits(self, pages: int, *, urgent: bool = False) -> bool:
        """Whether ``take`` would give a run of ``pages``."""
        return pages <= self.free and (self._may_move(urgent=urgent) or self._hole(pages) is not None)

    def take(self, pages: int, *, urgent: bool = False) -> Run | None:
        """A run of ``pages`` in the shortest hole that is long enough, else in one that is made by moving
        others (``take_moves``); ``urgent`` moves them however full the pool is. None where there is no room.
        """
        if pages > self.free:
            return None
        place = self._hole(pages)
        if place is None:
            if not self._may_move(urgent=urgent):
                return None
            place = self._make_hole(pages)
        run = Run(self._runs[place - 1].end if place else 0, pages)
        self._runs.insert(place, run)
        self.used += pages
        return run

    def give_back(self, run: Run) -> None:
        """Nobody needs ``run`` any more."""
        self._runs.remove(run)
        self.used -= run.pages

    def take_moves(self) -> list[Move]:
        """What has been moved since the last call, in order; done before anything is written to new runs."""
        moves, self._moves = self._moves, []
        return moves

    def _may_move(self, *, urgent: bool) -> bool:
        return urgent or self.used < COMPACT_BELOW * self.pages

    def _gaps(self) -> list[int]:
        """Free pages before each run, and behind the last one."""
        gaps, end = [], 0
        for run in self._runs:
            gaps.append(run.start - end)
            end = run.start + run.pages
        return [*gaps, self.pages - end]

    def _hole(self, pages: int) -> int | None:
        """Place among the runs of the shortest gap that is long enough, the lowest of equals."""
        best: int | None = None
        shortest = self.pages + 1
        for place, gap in enumerate(self._gaps()):
            if pages <= gap < shortest:
                best, shortest = place, gap
        return best

    def _make_hole(self, pages: int) -> int:
        """Slide those runs down whose gaps together suffice and which have the fewest pages; the place behind
        them.
        """
        first, last = self._cheapest(self._gaps(), pages)
        end = self._runs[first - 1].end if first else 0
        for run in self._runs[first:last]:
            if run.start != end:
                self._moves.append(Move(run.start, end, run.pages))
                run.start = end
            end = run.end
        return last

    def _cheapest(self, gaps: list[int], pages: int) -> tuple[int, int]:
        """``runs[first:last]`` with the fewest pages among those whose gaps, before, between and behind them,
        come to ``pages``: two ends that advance.
        """
        first = last = moved = 0
        found, best, room = (0, len(self._runs)), self.pages + 1, gaps[0]
        while True:
            if room >= pages:
                if moved < best:
                    best, found = moved, (first, last)
                if first == last:
                    return found
                room -= gaps[first]
                moved -= self._runs[first].pages
                first += 1
            elif last < len(self._runs):
                moved += self._runs[last].pages
                last += 1
                room += gaps[last]
            else:
                return found
