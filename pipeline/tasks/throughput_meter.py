"""How fast it goes and how long it will take, from what was read so far: parts of unfinished documents count
too.

Tasks differ: a label of a text takes a fraction of the time of its summary. So what is left is reckoned in
seconds of the plan, where there is one, and the plan is set right by what those seconds have taken: at first
it speaks alone, after some minutes of work hardly any more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

_PLAN_SECONDS = 60.0  # of work, after which the plan and what was measured count alike


@dataclass(frozen=True, slots=True)
class TaskSize:
    """What is left to do of a task: characters, and the seconds that the plan gives them, if it does."""

    characters: int
    planned_seconds: float | None = None


class ThroughputMeter:
    """What is to be read by task, and what was read since the model began to answer."""

    def __init__(self, tasks: Mapping[str, TaskSize] | None = None) -> None:
        sizes = tasks or {}
        self._planned = all(size.planned_seconds for size in sizes.values() if size.characters)
        self._prices = {
            name: (size.planned_seconds or 0.0) / size.characters if self._planned else 1.0
            for name, size in sizes.items()
            if size.characters
        }
        self._all = self._left = sum(
            self._prices[name] * size.characters for name, size in sizes.items() if size.characters
        )
        self._read = 0.0
        self._tokens = 0
        self._worked_seconds = 0.0
        self._since: float | None = time.monotonic()

    def start(self) -> None:
        """The model begins, or goes on, now."""
        if not self._tokens:
            self._worked_seconds, self._since = 0.0, None
        self._since = self._since or time.monotonic()

    def pause(self) -> None:
        """There is no model: loading one is no part of the speed."""
        self._worked_seconds, self._since = self.worked_seconds, None

    def read(self, task: str, characters: float, tokens: int) -> None:
        """Some characters of a document were read, at the price of so many tokens computed: read or
        written.
        """
        price = self._prices.get(task, 1.0)
        self._left -= characters * price
        self._read += characters * price
        self._tokens += tokens

    def skipped(self, task: str, characters: float) -> None:
        """Characters that need not be read any more: recorded in an earlier run, left out, or of a document
        that failed.
        """
        self._left -= characters * self._prices.get(task, 1.0)

    @property
    def worked_seconds(self) -> float:
        """Since the model began, without the times in which there was none."""
        return self._worked_seconds + (0.0 if self._since is None else time.monotonic() - self._since)

    @property
    def tokens_per_second(self) -> float:
        """Tokens computed, read or written, a second of work."""
        return self._tokens / max(1e-9, self.worked_seconds)

    @property
    def share(self) -> float:
        """Of all that is to be read, what was read or need not be, parts of long documents included."""
        return min(1.0, max(0.0, 1 - self._left / self._all)) if self._all > 0 else 0.0

    @property
    def planned_seconds(self) -> float | None:
        """What the plan gives all of it; None: there is none."""
        return self._all if self._planned and self._all > 0 else None

    @property
    def eta_seconds(self) -> float | None:
        """Seconds left; None where there is no plan, before anything was read."""
        left = max(0.0, self._left)
        if self._planned and self._all > 0:
            return left * (self.worked_seconds + _PLAN_SECONDS) / (self._read + _PLAN_SECONDS)
        return None if self._read <= 0 else left * self.worked_seconds / self._read
