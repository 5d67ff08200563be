"""A store without files, limits or faults: what any store is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pipeline.stores.kv.counters import Receipt
from pipeline.stores.kv.entry import Entry, Found, Loaded, Segment
from pipeline.stores.kv.manifest import canonical


@dataclass
class Kept:
    entry: Entry
    ranges: dict[str, torch.Tensor]
    states: dict[str, torch.Tensor]


class PerfectStore:
    """The methods of KvStore over a dictionary. Finds the longest usable beginning to the token."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self._asked: dict[str, Sequence[int]] = {}
        self._count = 0

    def put(self, entry: Entry, segment: Segment) -> Receipt:
        mine = self._checkpoint(entry.fingerprint, entry.owner)
        if segment.begin:
            if mine is None or list(self.kept[mine].entry.ids) != list(entry.ids)[: segment.begin]:
                return Receipt(None, "gap")
            before = self.kept[mine].ranges
            joined = {
                name: torch.cat([before[name], tensor], dim=-2) for name, tensor in segment.ranges.items()
            }
            self.kept[mine] = Kept(entry, joined, dict(segment.states))
            return Receipt(mine)
        same = None if entry.kind == "checkpoint" else self._same(entry)
        if same is not None:
            if entry.kind == "prefix":
                self.kept[same].entry = replace(self.kept[same].entry, kind="prefix")
            return Receipt(same, "already_stored")
        if entry.kind == "checkpoint" and mine is not None:
            del self.kept[mine]
        self._count += 1
        self.kept[f"{self._count:032x}"] = Kept(entry, dict(segment.ranges), dict(segment.states))
        return Receipt(f"{self._count:032x}")

    def usable_tokens(self, ids: Sequence[int], fingerprint: Mapping[str, Any]) -> dict[str, int]:
        """By entry, how much of ``ids`` it serves."""
        return {
            name: tokens
            for name, kept in self.kept.items()
            if canonical(kept.entry.fingerprint) == canonical(fingerprint) and (tokens := _usable(kept, ids))
        }

    def lookup(self, ids: Sequence[int], fingerprint: Mapping[str, Any]) -> Found | None:
        usable = self.usable_tokens(ids, fingerprint)
        if not usable:
            return None
        best = max(usable, key=lambda name: (usable[name], name))
        return self._found(best, usable[best])

    def find_checkpoint(self, fingerprint: Mapping[str, Any], owner: Mapping[str, Any]) -> Found | None:
        mine = self._checkpoint(fingerprint, owner)
        return None if mine is None else self._found(mine, len(self.kept[mine].entry.ids))

    def _found(self, name: str, tokens: int) -> Found:
        entry = self.kept[name].entry
        return Found(name, tokens, len(entry.ids), 0, entry.seconds, entry.kind, entry.owner, None)

    def load(self, found: Found) -> Loaded | None:
        kept = self.kept.get(found.entry_id)
        if kept is None:
            return None
        cut = {name: tensor[..., : found.tokens, :].clone() for name, tensor in kept.ranges.items()}
        ids = tuple(kept.entry.ids)[: found.tokens]
        return Loaded(
            found.tokens,
            ids,
            cut,
            dict(kept.states),
            tuple(kept.entry.layer_kinds),
            dict(kept.entry.extra),
            0,
            0.0,
        )

    def finish_checkpoint(
        self, fingerprint: Mapping[str, Any], owner: Mapping[str, Any], *, become: Any = None
    ) -> bool:
        mine = self._checkpoint(fingerprint, owner)
        if mine is None:
            return False
        kept = self.kept[mine]
        if become is None or self._same(kept.entry) is not None:
            del self.kept[mine]
        else:
            kept.entry = replace(kept.entry, kind=become, extra={})
        return True

    def discard(self, entry_id: str) -> bool:
        return self.kept.pop(entry_id, None) is not None

    def close(self) -> None:
        pass

    def _same(self, entry: Entry) -> str | None:
        wanted = (canonical(entry.fingerprint), list(entry.ids))
        finished = ((name, kept.entry) for name, kept in self.kept.items() if kept.entry.kind != "checkpoint")
        return next(
            (name for name, held in finished if (canonical(held.fingerprint), list(held.ids)) == wanted), None
        )

    def _checkpoint(self, fingerprint: Mapping[str, Any], owner: Mapping[str, Any]) -> str | None:
        wanted = ("checkpoint", canonical(fingerprint), canonical(owner))
        held = ((name, kept.entry) for name, kept in self.kept.items())
        return next(
            (
                name
                for name, one in held
                if (one.kind, canonical(one.fingerprint), canonical(one.owner)) == wanted
            ),
            None,
        )


def _usable(kept: Kept, ids: Sequence[int]) -> int:
    common = 0
    for mine, wanted in zip(kept.entry.ids, ids, strict=False):
        if mine != wanted:
            break
        common += 1
    whole = common == len(kept.entry.ids)
    return common if whole or not kept.states else 0
