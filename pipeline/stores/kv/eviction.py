"""Which entries make room for another: pure arithmetic on facts, no files.

An entry is worth the seconds that computing it took, for each byte that it takes; half of that for every week
in which nobody used it. Kinds are ranked: a document gives way to a shared prefix, and both to the checkpoint
of an unfinished document, never the other way round; but a checkpoint that nobody came back for makes room
after a week for others, and after a month for anything. Among its own kind a newcomer displaces only what is
clearly worth less: without that, a collection slightly larger than the store would push out each entry just
before it is wanted again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.stores.kv.manifest import EntryKind

_RANK: dict[EntryKind, int] = {"document": 0, "prefix": 1, "checkpoint": 2}
HALF_LIFE_SECONDS = 7 * 86_400.0
ABANDONED_SECONDS = 7 * 86_400.0
FORGOTTEN_SECONDS = 30 * 86_400.0
CLEARLY = 1.25


@dataclass(frozen=True)
class EvictionFacts:
    """What the choice depends on. ``seconds``: what computing took; ``last_used``: seconds since the
    epoch.
    """

    entry_id: str
    kind: EntryKind
    size_bytes: int
    seconds: float
    last_used: float

    def worth(self, now: float) -> float:
        """Seconds saved for each byte, halved for each week without use."""
        age_seconds = max(0.0, now - self.last_used)
        return self.seconds * math.exp2(-age_seconds / HALF_LIFE_SECONDS) / max(1, self.size_bytes)


def choose_victims(
    held: Iterable[EvictionFacts], needed_bytes: int, now: float, newcomer: EvictionFacts | None = None
) -> Sequence[EvictionFacts] | None:
    """Entries to remove, least worth first, so that ``needed_bytes`` become free; None if ``newcomer`` may
    not have that much.

    Where a large one at the end makes earlier choices unnecessary, those stay, dearest first. Without a
    newcomer (the quota was cut) every entry may go, checkpoints last.
    """
    candidates = [facts for facts in held if newcomer is None or _gives_way(facts, newcomer, now)]
    chosen: list[EvictionFacts] = []
    for facts in sorted(candidates, key=lambda facts: (_rank(facts, now), facts.worth(now), facts.entry_id)):
        if needed_bytes <= 0:
            break
        chosen.append(facts)
        needed_bytes -= facts.size_bytes
    if needed_bytes > 0:
        return None if newcomer is not None else chosen
    for facts in reversed(chosen[:-1]):
        if needed_bytes + facts.size_bytes <= 0:
            needed_bytes += facts.size_bytes
            chosen.remove(facts)
    return chosen


def _gives_way(facts: EvictionFacts, newcomer: EvictionFacts, now: float) -> bool:
    rank, rank_of_newcomer = _rank(facts, now), _RANK[newcomer.kind]
    if rank != rank_of_newcomer:
        return rank < rank_of_newcomer
    if rank == _RANK["checkpoint"]:
        return now - facts.last_used > ABANDONED_SECONDS
    return facts.worth(now) * CLEARLY < newcomer.worth(now)


def _rank(facts: EvictionFacts, now: float) -> int:
    forgotten = facts.kind == "checkpoint" and now - facts.last_used > FORGOTTEN_SECONDS
    return _RANK["document" if forgotten else facts.kind]
