"""How many rows decode together: found by trying, within what memory allows. Pure arithmetic on seconds.

More rows share the reading of the weights, until the matrix products are saturated; where that is depends on
the machine and the model. So the limit starts small and doubles as long as a decoded token gets cheaper by
it; passes that also read prompts say nothing about that and are not counted.
"""

from __future__ import annotations

import statistics

_FIRST_ROWS = 16
_PASSES = 4
_LEAST_GAIN = 0.05


class BatchSizeRamp:
    """``rows`` is the limit now, at most ``most_rows``. ``observe`` passes that only decoded."""

    def __init__(self, most_rows: int) -> None:
        self.rows = min(_FIRST_ROWS, most_rows)
        self._most_rows = most_rows
        self._settled = self.rows == most_rows
        self._seen: list[float] = []
        self._before: float | None = None

    def observe(self, rows: int, seconds: float) -> None:
        """A pass decoded one token for each of ``rows``. Those far below the limit tell nothing about it."""
        if self._settled or rows * 4 < self.rows * 3:
            return
        self._seen.append(seconds / rows)
        if len(self._seen) < _PASSES:
            return
        now, self._seen = statistics.median(self._seen), []
        if self._before is not None and now > self._before * (1 - _LEAST_GAIN):
            self.rows, self._settled = self.rows // 2, True
            return
        self._before = now
        self.rows, self._settled = min(2 * self.rows, self._most_rows), self.rows == self._most_rows

    def shrink(self, rows: int) -> None:
        """Memory did not suffice for more than ``rows``: final."""
        self.rows, self._settled = max(1, min(self.rows, rows)), True
