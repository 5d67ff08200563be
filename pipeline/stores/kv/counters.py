"""What became of writes, and what the store counts. No torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

Reason = Literal[
    "already_stored",
    "gap",
    "quota",
    "worth_less",
    "free_space",
    "disk_full",
    "busy",
    "encoding",
    "error",
    "skipped",
]


@dataclass(frozen=True)
class Receipt:
    """What became of a write: the id of the entry, or the reason why it was declined. ``already_stored`` has
    both.
    """

    entry_id: str | None
    reason: Reason | None = None
    message: str = ""

    @property
    def stored(self) -> bool:
        """Whether this call wrote something."""
        return self.reason is None


@dataclass
class Counters:
    """What the store did since it was opened. ``warnings`` are what a report should show."""

    hits: int = 0
    misses: int = 0
    loaded: int = 0
    loaded_tokens: int = 0
    loaded_bytes: int = 0
    stored: int = 0
    stored_bytes: int = 0
    evicted: int = 0
    evicted_bytes: int = 0
    declined: Counter[str] = field(default_factory=Counter)
    # damaged, unreadable, orphans, busy, disk_full, error
    warnings: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a report."""
        return {
            name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()
        }


class Declined(Exception):
    """A write that the store does not make. Ends as a Receipt; never leaves the store."""

    def __init__(self, reason: Reason, message: str, entry_id: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.entry_id = entry_id
