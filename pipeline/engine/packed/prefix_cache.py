"""Beginnings of prompts that are read once: a task's instructions, a document about which several questions
are asked.

In memory a beginning is a ``Prefix``: one copy, seen by all rows whose prompts begin with it. It stays while
a question that is queued or running begins with it. Behind that lies the KV store: what earlier runs and
other tasks left there is loaded instead of computed, what further questions may want is put there, and the
reading of a long document is saved on its way.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

import torch

from pipeline.engine.packed.attention import Prefix
from pipeline.engine.packed.model_runner import PackedModelRunner
from pipeline.engine.reuse.prefix_store import LEAST_TOKENS, PrefillCheckpoints, PrefixStore
from pipeline.records import Plan, Request, document_of
from pipeline.stores.kv.entry import Loaded

_LEAST_SHARED_TOKENS = 32
_RECENT_SHARE = (
    8  # of a batch's columns: documents that wait in memory for questions of this run that have not come yet
)
_Ids = tuple[int, ...]


class PrefixCache:
    """See the module. ``reuse`` None: only what is in memory is shared. ``pulse`` is called after each
    pass.
    """

    def __init__(self, packed: PackedModelRunner, plan: Plan, reuse: PrefixStore | None) -> None:
        self.pulse: Callable[[], None] = lambda: None
        self.reuse = reuse
        self.columns = 0
        """Tokens held, of documents."""
        self._packed = packed
        self._plan = plan
        self._recent_tokens = plan.batch_tokens // _RECENT_SHARE
        self._expected: Counter[_Ids] = Counter()
        self._held: dict[_Ids, Prefix] = {}
        self._recent: OrderedDict[_Ids, Prefix] = OrderedDict()
        self._saved: dict[_Ids, bool] = {}
        self._read_tokens = 0

    # ── who wants what ──────────────────────────────────────────────────────────────────────────────────────

    def expect(self, request: Request) -> None:
        """A question is queued."""
        if request.document_end:
            self._expected[document_of(request)] += 1

    def forget(self, request: Request) -> None:
        """A question is answered or given up; with the last one about a document its cache goes."""
        if not request.document_end:
            return
        key = document_of(request)
        self._expected[key] -= 1
        if self._expected[key] > 0:
            return
        del self._expected[key]
        self._let_go(key, awaited=request.awaited > 0)
        if self.reuse is not None and key in self._saved:
            self.reuse.finish(key, keep=self._saved.pop(key))

    def clear(self) -> None:
        """Give the memory back; what is still wanted is made again."""
        self._held.clear()
        self._recent.clear()
        self.columns = 0

    def _let_go(self, key: _Ids, *, awaited: bool) -> None:
        prefix = self._held.pop(key, None)
        if prefix is None:
            return
        self.columns -= prefix.tokens
        if awaited:
            self._recent[key] = prefix
        while sum(map(len, self._recent)) > self._recent_tokens:
            self._recent.popitem(last=False)

    def read_tokens(self) -> int:
        """Tokens computed since the last call."""
        tokens, self._read_tokens = self._read_tokens, 0
        return tokens

    # ── making it ───────────────────────────────────────────────────────────────────────────────────────────

    def beginning(self, request: Request, base: Prefix | None) -> Prefix | None:
        """The prompt up to the end of its document, where that is there or worth a pass of its own; ``base``
        is a beginning of it.
        """
        if request.document_end < _LEAST_SHARED_TOKENS:
            return None
        key = document_of(request)
        prefix = self._held.get(key) or self._recent.pop(key, None)
        if prefix is not None:
            self._count_shared(key)
        elif self._is_looked_for(request):
            prefix = self._made(request, key, base)
        if prefix is not None and key not in self._held:
            self._held[key] = prefix
            self.columns += prefix.tokens
        return prefix

    def instructions(self, ids: _Ids) -> Prefix:
        """The shared beginning of a task's prompts, loaded or computed, and kept for the next start."""
        found = self._loaded(ids) if self.reuse is not None and len(ids) >= LEAST_TOKENS else None
        prefix = found[0] if found else None
        before = prefix.tokens if prefix else 0
        started = time.perf_counter()
        prefix = self._continued(prefix, ids, None)
        if self.reuse is not None and before < len(ids) and len(ids) >= LEAST_TOKENS:
            self.reuse.put("prefix", ids, time.perf_counter() - started, _ranges(prefix, 0))
        return prefix

    def _is_looked_for(self, request: Request) -> bool:
        return self._expected[document_of(request)] > 1 or (
            self.reuse is not None and self.reuse.is_wanted(request.document_tokens)
        )

    def _made(self, request: Request, key: _Ids, base: Prefix | None) -> Prefix | None:
        """Loaded, or computed if somebody else will want it; None where the question may as well be read in
        one go.
        """
        here = self._expected[key] - 1
        if self.reuse is None or not self.reuse.is_wanted(request.document_tokens):
            return self._continued(base, key, None) if here > 0 else None
        found = self._loaded(key)
        prefix, resumed = found or (None, False)
        keep = self.reuse.keeps(len(key), len(key) * self._plan.kv_bytes_per_token, request.awaited - here)
        long = self.reuse.session.is_long(len(key))
        if resumed:
            self._saved[key] = keep
        if prefix is None and not (here > 0 or keep or long):
            return None
        saving = (
            PrefillCheckpoints(self.reuse, key, prefix.tokens if prefix and resumed else 0)
            if long or resumed
            else None
        )
        return self._computed(
            key, prefix or base, keep=keep and (prefix is None or prefix.tokens < len(key)), saving=saving
        )

    def _computed(
        self, key: _Ids, start: Prefix | None, *, keep: bool, saving: PrefillCheckpoints | None
    ) -> Prefix:
        """``key`` read from where ``start`` ends, and put on the KV store if it is to be kept."""
        assert self.reuse is not None
        session, begun, started = (
            self.reuse.session,
            start.tokens if start is not None else 0,
            time.perf_counter(),
        )
        prefix = self._continued(start, key, saving)
        if prefix.tokens > begun:
            session.computed(prefix.tokens - begun, time.perf_counter() - started)
        speed = session.prefill_tokens_per_second
        seconds = prefix.tokens / speed if speed else time.perf_counter() - started
        if saving is not None and saving.used:
            saving.save(prefix.tokens, seconds, lambda begin: (_ranges(prefix, begin), {}))
            self._saved[key] = self._saved.get(key, False) or keep
        elif keep:
            self.reuse.put("document", key, seconds, _ranges(prefix, 0))
        return prefix

    def _continued(self, start: Prefix | None, ids: _Ids, saving: PrefillCheckpoints | None) -> Prefix:
        """``start`` and what ``ids`` have beyond it; ``start`` itself stays as it is."""
        prefix = Prefix(0) if start is None else Prefix(start.tokens, dict(start.layers))
        started, chunk_tokens = time.perf_counter(), self._plan.prefill_chunk_tokens
        while prefix.tokens < len(ids):
            # Stretches end at the same tokens whether or not the beginning was loaded: the numbers are the
            # same then, too.
            end = min(len(ids), (prefix.tokens // chunk_tokens + 1) * chunk_tokens)
            self._read_tokens += end - prefix.tokens
            self._packed.extend(prefix, ids[prefix.tokens : end])
            self.pulse()
            if saving is not None and end < len(ids) and saving.is_due():
                saving.save(end, time.perf_counter() - started, lambda begin: (_ranges(prefix, begin), {}))
        return prefix

    def _loaded(self, ids: _Ids) -> tuple[Prefix, bool] | None:
        """What the KV store has of ``ids``, and whether it is a checkpoint."""
        assert self.reuse is not None
        found = self.reuse.find(ids)
        return None if found is None else (_prefix_of(found[0], self._packed.device), found[1])

    def _count_shared(self, key: _Ids) -> None:
        if self.reuse is not None:
            speed = self.reuse.session.prefill_tokens_per_second
            self.reuse.session.tally.shared += 1
            self.reuse.session.tally.saved_seconds += len(key) / speed if speed else 0.0


def _ranges(prefix: Prefix, begin: int) -> dict[str, torch.Tensor]:
    """Keys and values of all layers as the store has them: (G, tokens, D), those from token ``begin``.

    A part is a copy: a view of it would keep the whole prefix as it is now in memory for as long as it waits
    to be written.
    """
    ranges = {}
    for layer, pair in prefix.layers.items():
        for name, kept in zip("kv", pair, strict=True):
            ranges[f"L{layer}.{name}"] = kept[0, :, begin:].clone() if begin else kept[0]
    return ranges


def _prefix_of(loaded: Loaded, device: torch.device) -> Prefix:
    layers = {}
    for name in loaded.ranges:
        if name.endswith(".k"):
            pair = loaded.ranges[name], loaded.ranges[f"{name[:-2]}.v"]
            layers[int(name[1:-2])] = (pair[0].to(device)[None], pair[1].to(device)[None])
    return Prefix(loaded.tokens, layers)
