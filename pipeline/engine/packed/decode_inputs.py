"""What a pass is told in which every row decodes one token: numbers at fixed places of a card's memory, sent
by one copy, so that a recorded pass finds those of the next one where it looks for them.

Shapes: R rows at most, N rows of the pass, those that only fill it up included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pipeline.engine.packed.feed import Feed
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.sequence import PAGE_TOKENS, HeldBeginning
from pipeline.engine.transfers import sent


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Of N rows, int32 all of them. Token ids are ``tokens[sources]``: those that the last pass chose (R,),
    then those that the host knows (N,). ``places`` (N,) of the pool are written; row ``i`` sees ``used[i]``
    tokens of the pool from ``begins[i]`` on, and all rows see those from ``shared[0]`` to ``shared[1]``.
    ``each`` (N + 1,) and ``together`` (2,) are the bounds of the queries, of rows by themselves and of all as
    one.
    """

    tokens: torch.Tensor
    sources: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor
    begins: torch.Tensor
    used: torch.Tensor
    shared: torch.Tensor
    each: torch.Tensor
    together: torch.Tensor


class InputBuffer:
    """The memory of the inputs of passes of up to ``rows`` rows."""

    def __init__(self, rows: int, pool: KvPool) -> None:
        self.rows, self._pool = rows, pool
        # what was chosen, five numbers a row, an end of begins, and the two bounds of two stretches
        self._numbers = torch.zeros(rows + 6 * rows + 5, dtype=torch.int32, device=pool.device)
        self._each = torch.arange(rows + 1, dtype=torch.int32, device=pool.device)

    def keep(self, chosen: torch.Tensor) -> torch.Tensor:
        """Put token ids (n,) there as those that the last pass chose; where they are now."""
        return self._numbers[: len(chosen)].copy_(chosen)

    def of(self, rows: int) -> DecodeInputs:
        """Where those of a pass of ``rows`` rows are."""
        sizes = [rows, rows, rows, rows, rows + 1, rows, 2, 2]
        numbers = self._numbers[self.rows : self.rows + sum(sizes)]
        _, sources, positions, places, begins, used, shared, together = torch.split(numbers, sizes)
        tokens = self._numbers[: self.rows + rows]
        return DecodeInputs(
            tokens, sources, positions, places, begins, used, shared, self._each[: rows + 1], together
        )

    def fill(self, feeds: Sequence[Feed], rows: int, shared: HeldBeginning | None) -> None:
        """Send what ``feeds`` say; further rows up to ``rows`` write to the pool's scratch page and see
        that.
        """
        spare = [self._pool.scratch + row % PAGE_TOKENS for row in range(rows - len(feeds))]
        none = [0] * len(spare)
        firsts = [feed.row.run.start * PAGE_TOKENS for feed in feeds if feed.row.run is not None]
        cached = [feed.row.cached for feed in feeds]
        sources = [self.rows + row if feed.late is None else feed.late for row, feed in enumerate(feeds)]
        first, seen = (
            (self._pool.scratch, 1)
            if shared is None
            else (shared.run.start * PAGE_TOKENS, shared.tokens - shared.begin)
        )
        numbers = [
            *[feed.tokens[0] for feed in feeds], *none,
            *sources, *range(self.rows + len(feeds), self.rows + rows),
            *[feed.row.start + feed.row.cached for feed in feeds], *none,
            *[begin + count for begin, count in zip(firsts, cached, strict=True)], *spare,
            *firsts, *spare, self._pool.tokens,
            *[count + 1 for count in cached], *[1] * len(spare),
            first, first + seen,
            0, rows,
        ]  # fmt: skip
        ready = sent(numbers, torch.int32, self._pool.device)
        self._numbers[self.rows : self.rows + len(numbers)].copy_(ready)
