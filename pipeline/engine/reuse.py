"""What an engine asks of the shelf: is a beginning of this prompt there and worth reading, keep this one, save this work so far.

Token ids and named tensors of one row; which tensors those are is the engine's business. Reading or computing is decided for each
cache, from what reading was measured to take, what computing was measured to take, and its bytes. Nothing here fails a request:
whatever goes wrong with the store is a miss.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.engine.shelf import Shelf
from pipeline.records import digest
from pipeline.stores.kv.blocks import pack
from pipeline.stores.kv.manifest import Kind
from pipeline.stores.kv.speed import worth_loading
from pipeline.stores.kv.values import Entry, Found, Loaded, Segment

LEAST_TOKENS = 64  # shorter beginnings are computed in about the time in which they would be looked for
_LEAST_DOCUMENT_TOKENS = 256
_PROBE_AFTER = 32  # caches not worth reading, before the disk is tried again


class Reuse:
    """One engine's use of the shelf; ``fingerprint`` holds all that shapes its numbers."""

    def __init__(self, shelf: Shelf, fingerprint: Mapping[str, Any]) -> None:
        self.shelf = shelf
        self._fingerprint = dict(fingerprint)
        self._progress = {**fingerprint, "holds": "tokens decoded so far"}
        self._refused, self._probe_after = 0, _PROBE_AFTER

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────────────────

    def find(self, ids: Sequence[int]) -> tuple[Loaded, bool] | None:
        """The longest stored beginning of ``ids`` that is worth reading, read, and whether it is a checkpoint; None: compute it.

        Less than half of ``ids`` is not read, unless it is a checkpoint.
        """
        tally, store = self.shelf.tally, self.shelf.store
        found = store.lookup(ids, self._fingerprint)
        if found is None or (found.kind != "checkpoint" and 2 * found.tokens < len(ids)):
            tally.computed += 1
            return None
        compute_seconds = self._compute_seconds(found)
        loaded = store.load(found) if self._is_worth_reading(found, compute_seconds) else None
        if loaded is None:
            tally.recomputed += 1
            return None
        tally.loaded += 1
        resumed = found.kind == "checkpoint"
        tally.resumed += resumed
        tally.loaded_tokens += loaded.tokens
        tally.saved_seconds += compute_seconds - loaded.seconds
        return loaded, resumed

    def _compute_seconds(self, found: Found) -> float:
        """What computing would take here, else what it took where it was computed."""
        speed = self.shelf.prefill_tokens_per_second
        return found.tokens / speed if speed else found.compute_seconds

    def _is_worth_reading(self, found: Found, compute_seconds: float) -> bool:
        """Now and then the disk is tried again although it was too slow: it may have been busy."""
        speed = found.tokens / compute_seconds if compute_seconds > 0 else None
        if worth_loading(found.bytes_to_read, self.shelf.store.speeds.read_bytes_per_second, found.tokens, speed):
            return True
        self._refused += 1
        if self._refused < self._probe_after:
            return False
        self._refused, self._probe_after = 0, 2 * self._probe_after
        return True

    # ── keeping ────────────────────────────────────────────────────────────────────────────────────────────────────

    def is_wanted(self, tokens: int) -> bool:
        """Whether a document of so many tokens may be on the shelf at all."""
        return tokens >= (LEAST_TOKENS if self.shelf.settings.documents == "always" else _LEAST_DOCUMENT_TOKENS)

    def keeps(self, tokens: int, size_bytes: int, awaited: int) -> bool:
        """Whether the cache of a document is to be kept, which ``awaited`` further questions of this run will want."""
        if self.shelf.settings.documents != "auto":
            return self.shelf.settings.documents == "always"
        speeds = self.shelf.store.speeds.read_bytes_per_second, self.shelf.prefill_tokens_per_second
        return awaited > 0 and worth_loading(size_bytes, speeds[0], tokens, speeds[1])

    def put(
        self, kind: Kind, ids: Sequence[int], seconds: float, ranges: Mapping[str, torch.Tensor],
        states: Mapping[str, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Write in the background what ``ids`` have left behind. The tensors must never change again."""
        entry = Entry(self._fingerprint, kind, tuple(ids), seconds)
        self.shelf.writer.put(entry, Segment(0, ranges, states or {}), copy=False)

    # ── long documents ─────────────────────────────────────────────────────────────────────────────────────────────

    def save(
        self, document: Sequence[int], begin: int, end: int, seconds: float, ranges: Mapping[str, torch.Tensor],
        states: Mapping[str, torch.Tensor] | None = None,
    ) -> bool:  # fmt: skip
        """Checkpoint: ``document`` has been read up to token ``end``; ``ranges`` are of the tokens from ``begin``, where the last one
        ended. False: the writer is busy, and this one is left out.
        """
        entry = Entry(self._fingerprint, "checkpoint", tuple(document[:end]), seconds, owner=_owner(document))
        return self.shelf.writer.put(entry, Segment(begin, ranges, states or {}), copy=False) is not None

    def finish(self, document: Sequence[int], *, keep: bool) -> None:
        """Nobody needs the checkpoint of ``document`` any more; with ``keep`` it stays as a document's cache."""
        self.shelf.writer.finish_checkpoint(self._fingerprint, _owner(document), become="document" if keep else None)

    def save_tokens(self, question: str, ids: Sequence[int], tokens: Sequence[int], seconds: float) -> None:
        """Checkpoint of a text: ``tokens`` are decoded so far. ``question`` tells it from others about the same ids."""
        entry = Entry(self._progress, "checkpoint", tuple(ids), seconds, owner={"question": question}, extra={"tokens": list(tokens)})
        self.shelf.writer.put(entry, Segment(0, {}), copy=False)

    def saved_tokens(self, question: str) -> tuple[int, ...]:
        """What an earlier process had decoded; empty where nothing is known."""
        found = self.shelf.store.find_checkpoint(self._progress, {"question": question})
        loaded = None if found is None else self.shelf.store.load(found)
        return () if loaded is None else tuple(int(token) for token in loaded.extra.get("tokens", ()))

    def finish_tokens(self, question: str) -> None:
        """The text is complete."""
        self.shelf.writer.finish_checkpoint(self._progress, {"question": question})


class Saving:
    """When the work on a long document is saved next: about every ``checkpoint_seconds``."""

    def __init__(self, reuse: Reuse, document: Sequence[int], saved_tokens: int) -> None:
        self._reuse = reuse
        self._document = document
        self.saved_tokens = saved_tokens
        self._last = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() - self._last >= self._reuse.shelf.settings.checkpoint_seconds

    def save(
        self, end: int, seconds: float, ranges: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor] | None = None
    ) -> None:  # fmt: skip
        """All tokens up to ``end``; ``ranges`` are of those that were not saved before."""
        if self._reuse.save(self._document, self.saved_tokens, end, seconds, ranges, states):
            self.saved_tokens = end
        self._last = time.monotonic()


def _owner(document: Sequence[int]) -> dict[str, Any]:
    return {"document": digest(pack(document))}
