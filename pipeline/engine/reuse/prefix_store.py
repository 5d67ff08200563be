"""What an engine asks of the KV store: is a beginning of this prompt there and worth reading, keep this one,
save this work so far.

Token ids and named tensors of one row; which tensors those are is the engine's business. Reading or computing
is decided for each cache, from what reading was measured to take, what computing was measured to take, and
its bytes. Nothing here fails a request: whatever goes wrong with the store is a miss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from pipeline.engine.reuse.device_time import Span
from pipeline.engine.reuse.store_session import StoreSession
from pipeline.records import digest
from pipeline.stores.kv.counters import Receipt
from pipeline.stores.kv.entry import Entry, Found, Loaded, Segment
from pipeline.stores.kv.io_speed import worth_loading
from pipeline.stores.kv.manifest import EntryKind
from pipeline.stores.kv.prefix_hash import pack

LEAST_TOKENS = 64  # shorter beginnings are computed in about the time in which they would be looked for
_LEAST_DOCUMENT_TOKENS = 256
_PROBE_AFTER = 32  # caches not worth reading, before the disk is tried again
_Tensors = Mapping[str, torch.Tensor]


class PrefixStore:
    """One engine's use of the KV store; ``fingerprint`` holds all that shapes its numbers."""

    def __init__(self, session: StoreSession, fingerprint: Mapping[str, Any]) -> None:
        self.session = session
        self._fingerprint = dict(fingerprint)
        self._progress = {**fingerprint, "holds": "tokens decoded so far"}
        self._refused, self._probe_after = 0, _PROBE_AFTER

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────

    def find(self, ids: Sequence[int]) -> tuple[Loaded, bool] | None:
        """The longest stored beginning of ``ids`` that is worth reading, read, and whether it is the
        checkpoint of ``ids`` themselves; None: compute it.

        Less than half of ``ids`` is not read, unless it is their checkpoint: other documents' may begin with
        the same instructions.
        """
        tally, store = self.session.tally, self.session.store
        found = store.lookup(ids, self._fingerprint)
        resumed = found is not None and found.kind == "checkpoint" and found.owner == _owner(ids)
        if found is None or not (resumed or 2 * found.tokens >= len(ids)):
            tally.computed += 1
            return None
        compute_seconds = self._compute_seconds(found)
        loaded = store.load(found) if self._is_worth_reading(found, compute_seconds) else None
        if loaded is None:
            tally.recomputed += 1
            return None
        tally.loaded += 1
        tally.resumed += resumed
        tally.loaded_tokens += loaded.tokens
        tally.saved_seconds += compute_seconds - loaded.seconds
        return loaded, resumed

    def _compute_seconds(self, found: Found) -> float:
        """What computing would take here, else what it took where it was computed."""
        speed = self.session.prefill_tokens_per_second
        return found.tokens / speed if speed else found.compute_seconds

    def _is_worth_reading(self, found: Found, compute_seconds: float) -> bool:
        """Now and then the disk is tried again although it was too slow: it may have been busy."""
        speed = found.tokens / compute_seconds if compute_seconds > 0 else None
        if worth_loading(
            found.bytes_to_read, self.session.store.speeds.read_bytes_per_second, found.tokens, speed
        ):
            return True
        self._refused += 1
        if self._refused < self._probe_after:
            return False
        self._refused, self._probe_after = 0, 2 * self._probe_after
        return True

    # ── keeping ─────────────────────────────────────────────────────────────────────────────────────────────

    def is_wanted(self, tokens: int) -> bool:
        """Whether a document of so many tokens may be on the KV store at all."""
        return tokens >= (
            LEAST_TOKENS if self.session.settings.documents == "always" else _LEAST_DOCUMENT_TOKENS
        )

    def keeps(self, tokens: int, size_bytes: int, awaited: int) -> bool:
        """Whether the cache of a document is to be kept, which ``awaited`` further questions of this run will
        want.
        """
        if self.session.settings.documents != "auto":
            return self.session.settings.documents == "always"
        speeds = self.session.store.speeds.read_bytes_per_second, self.session.prefill_tokens_per_second
        return awaited > 0 and worth_loading(size_bytes, speeds[0], tokens, speeds[1])

    def put(
        self,
        kind: EntryKind,
        ids: Sequence[int],
        took: Span,
        ranges: Mapping[str, torch.Tensor],
        states: Mapping[str, torch.Tensor] | None = None,
        *,
        copy: bool = False,
    ) -> None:
        """Write in the background what ``ids`` have left behind. The tensors must never change again unless
        they are to be copied.
        """
        entry = Entry(self._fingerprint, kind, tuple(ids), 0.0)
        segment = Segment(0, ranges, states or {})
        self.session.writer.put(entry, segment, copy=copy, seconds=took.seconds)

    # ── long documents ──────────────────────────────────────────────────────────────────────────────────────

    def save(
        self,
        document: Sequence[int],
        begin: int,
        end: int,
        took: Span,
        ranges: _Tensors,
        states: _Tensors,
        *,
        copy: bool = False,
    ) -> Future[Receipt] | None:
        """Checkpoint: ``document`` has been read up to token ``end``; ``ranges`` are of the tokens from
        ``begin``, where the last one ended. None: the writer is busy, and this one is left out.
        """
        entry = Entry(self._fingerprint, "checkpoint", tuple(document[:end]), 0.0, owner=_owner(document))
        segment = Segment(begin, ranges, states)
        return self.session.writer.put(entry, segment, copy=copy, seconds=took.seconds)

    def finish(self, document: Sequence[int], *, keep: bool) -> None:
        """The questions about ``document`` are answered; with ``keep`` its checkpoint stays as a document's
        cache, else it goes once the answers have had time to be recorded.
        """
        if keep:
            self.session.writer.finish_checkpoint(self._fingerprint, _owner(document), become="document")
        else:
            self.session.finish_later(self._fingerprint, _owner(document))

    def save_tokens(self, question: str, ids: Sequence[int], tokens: Sequence[int], seconds: float) -> None:
        """Checkpoint of a text: ``tokens`` are decoded so far. ``question`` tells it from others about the
        same ids.
        """
        entry = Entry(
            self._progress,
            "checkpoint",
            tuple(ids),
            seconds,
            owner={"question": question},
            extra={"tokens": list(tokens)},
        )
        self.session.writer.put(entry, Segment(0, {}), copy=False)

    def saved_tokens(self, question: str) -> tuple[int, ...]:
        """What an earlier process had decoded; empty where nothing is known."""
        found = self.session.store.find_checkpoint(self._progress, {"question": question})
        loaded = None if found is None else self.session.store.load(found)
        return () if loaded is None else tuple(int(token) for token in loaded.extra.get("tokens", ()))

    def finish_tokens(self, question: str) -> None:
        """The text is complete; what is saved of it goes once it has had time to be recorded."""
        self.session.finish_later(self._progress, {"question": question})


class PrefillCheckpoints:
    """The checkpoints of one long document, about every ``checkpoint_seconds``; ``saved_tokens`` are there
    already.

    Each continues the one before. Where that one turns out not to have been stored (a full disk, another
    process in the way), the next begins at the first token again.
    """

    def __init__(self, reuse: PrefixStore, document: Sequence[int], saved_tokens: int) -> None:
        self._reuse = reuse
        self._document = document
        self._saved_tokens = saved_tokens
        self._written: Future[Receipt] | None = None
        self._last = time.monotonic()
        self.used = saved_tokens > 0
        """Whether there is, or is about to be, a checkpoint."""

    def is_due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() - self._last >= self._reuse.session.settings.checkpoint_seconds

    def save(self, end: int, took: Span, tensors: Callable[[int], tuple[_Tensors, _Tensors]]) -> None:
        """All tokens up to ``end``, unless they are saved; ``tensors`` gives ranges from a token on, and
        states.
        """
        written = self._written
        if (
            written is not None
            and written.done()
            and (written.exception() is not None or not written.result().stored)
        ):
            self._saved_tokens, self._written = 0, None
        if self._saved_tokens < end:
            begun = self._reuse.save(
                self._document, self._saved_tokens, end, took, *tensors(self._saved_tokens)
            )
            if begun is not None:
                self._saved_tokens, self._written, self.used = end, begun, True
        self._last = time.monotonic()


def _owner(document: Sequence[int]) -> dict[str, Any]:
    return {"document": digest(pack(document))}
