"""How fast it goes and how long it will take, from what was read so far: parts of unfinished documents count
too.
"""

from __future__ import annotations

import time


class ThroughputMeter:
    """Characters to read in all, and those read since the model began to answer."""

    def __init__(self, characters: int = 0) -> None:
        self._left = float(characters)
        self._read = 0.0
        self._tokens = 0
        self._since = time.monotonic()

    def start(self) -> None:
        """The model begins now: loading it is no part of the speed."""
        if not self._tokens:
            self._since = time.monotonic()

    def read(self, characters: float, tokens: int) -> None:
        """Some characters of a document were read, at the price of so many tokens in and out."""
        self._left -= characters
        self._read += characters
        self._tokens += tokens

    def skipped(self, characters: float) -> None:
        """Characters that need not be read any more: recorded in an earlier run, left out, or of a document
        that failed.
        """
        self._left -= characters

    @property
    def tokens_per_second(self) -> float:
        """Tokens read and written a second since the model began."""
        return self._tokens / max(1e-9, time.monotonic() - self._since)

    @property
    def eta_seconds(self) -> float | None:
        """Seconds left at the speed so far; None before anything was read."""
        elapsed = time.monotonic() - self._since
        return None if self._read <= 0 else max(0.0, self._left) * elapsed / self._read
