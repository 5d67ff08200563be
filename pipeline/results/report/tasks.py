"""What one task did, added up result by result: counts, sums and the few most telling documents; memory does
not grow with the results.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipeline.stores.ledger.queries import TaskRow
from pipeline.tasks.registry import answers_of

_SHOWN_FAILURES = 20
_SLOWEST = 10
_LONGEST = 20
_SLOW = ("document_key", "seconds", "tokens_in", "tokens_out", "parts")
_LONG = ("document_key", "parts", "characters", "covered")
_KINDS_OF_REASONS = 200
_OTHER = "(other reasons)"
_PARTICULARS = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d,.]*")


class Reasons:
    """Sentences counted by what they have in common: numbers and quoted words are left out."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, sentence: str) -> None:
        """Count one."""
        common = _PARTICULARS.sub("…", sentence[:300])
        known = common in self._counts or len(self._counts) < _KINDS_OF_REASONS
        self._counts[common if known else _OTHER] += 1

    def listed(self) -> list[dict[str, Any]]:
        """The most frequent first."""
        return [{"reason": reason, "count": count} for reason, count in self._counts.most_common()]


class _Top:
    """Some columns of the ``size`` rows with the largest numbers among all that were added; of equal ones the
    first.
    """

    def __init__(self, size: int, columns: Sequence[str]) -> None:
        self._size = size
        self._columns = columns
        self._heap: list[tuple[float, int, dict[str, Any]]] = []
        self._added = 0

    def add(self, number: float, row: Mapping[str, Any]) -> None:
        full = len(self._heap) == self._size
        if full and number <= self._heap[0][0]:
            return
        self._added += 1
        push = heapq.heappushpop if full else heapq.heappush
        push(self._heap, (number, -self._added, {name: row[name] for name in self._columns}))

    def listed(self) -> list[dict[str, Any]]:
        return [facts for _, _, facts in sorted(self._heap, key=lambda item: item[:2], reverse=True)]


class TaskFacts:
    """Takes the rows of ``Ledger.results`` one by one. ``id_of`` knows an id to a document key: only a few
    documents are shown.
    """

    def __init__(self, task: TaskRow, states: Mapping[str, int], id_of: Callable[[str], str]) -> None:
        self._task = task
        self._id_of = id_of
        self._states = dict(states)
        self._sums: Counter[str] = Counter()
        self._seconds = 0.0
        self._counts: dict[str, Counter[str]] = {
            name: Counter() for name in ("finish_reasons", "placements", "notes")
        }
        self._largest_batch = 0
        self._counts_of_kind = answers_of(task.job.kind).counts()
        self._slowest = _Top(_SLOWEST, _SLOW)
        self._longest = _Top(_LONGEST, _LONG)
        self._failures: list[dict[str, Any]] = []
        self._reasons = Reasons()

    def add_all(self, rows: Iterable[Mapping[str, Any]]) -> TaskFacts:
        """Count every row; returns itself."""
        for row in rows:
            self._seconds += row["seconds"]
            self._largest_batch = max(self._largest_batch, row["batch_rows"])
            self._counts["placements"][row["placement"]] += 1
            self._slowest.add(row["seconds"], row)
            if row["state"] == "done":
                self._add_answer(row)
            else:
                self._add_failure(row)
        return self

    def _add_answer(self, row: Mapping[str, Any]) -> None:
        for name in ("tokens_in", "tokens_out", "tokens_dropped"):
            self._sums[name] += row[name]
        self._sums["tokens_computed"] += row["computed"]
        self._sums["documents_cut"] += row["tokens_dropped"] > 0
        self._counts["finish_reasons"][str(row["finish_reason"])] += 1
        self._counts["notes"].update(row["notes"] or ())
        self._counts_of_kind.add(row)
        if row["parts"] > 1:
            self._sums["long"] += 1
            self._sums["long_read_whole"] += row["covered"] >= row["characters"]
            self._longest.add(row["parts"], row)

    def _add_failure(self, row: Mapping[str, Any]) -> None:
        self._reasons.add(f"{row['failure_kind']}: {row['failure_message']}")
        if len(self._failures) < _SHOWN_FAILURES:
            names = {"kind": "failure_kind", "message": "failure_message"}
            shown = {name: row[column] for name, column in names.items()}
            self._failures.append(
                {
                    "document_key": row["document_key"],
                    "state": row["state"],
                    **shown,
                    "attempts": row["attempts"],
                }
            )

    def _named(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows with an id in place of the key."""
        return [
            {
                "id": self._id_of(row["document_key"]),
                **{name: row[name] for name in row if name != "document_key"},
            }
            for row in rows
        ]

    def facts(self) -> dict[str, Any]:
        """Everything as plain values."""
        tokens = self._sums["tokens_computed"] + self._sums["tokens_out"]
        done = self._states["done"]
        facts: dict[str, Any] = {
            "kind": self._task.job.kind,
            "version": self._task.version,
            "fingerprint": self._task.job.fingerprint,
            "states": self._states,
            **{
                name: self._sums[name]
                for name in ("tokens_in", "tokens_computed", "tokens_out", "tokens_dropped", "documents_cut")
            },
            "working_seconds": self._seconds,
            "tokens_per_second": tokens / self._seconds if self._seconds else None,
            "documents_per_hour": done * 3600 / self._seconds if self._seconds else None,
            **{name: dict(counted.most_common()) for name, counted in self._counts.items()},
            "largest_batch_rows": self._largest_batch,
            "slowest": self._named(self._slowest.listed()),
            "failures": {"by_reason": self._reasons.listed(), "first": self._named(self._failures)},
            "long_documents": {
                "count": self._sums["long"],
                "read_whole": self._sums["long_read_whole"],
                "most_parts": self._named(self._longest.listed()),
            },
        }
        return facts | self._counts_of_kind.facts()
