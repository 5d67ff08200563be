"""Beginnings of prompts that are read once: a task's instructions, a document about which several questions
are asked.

In memory a beginning is a ``Prefix``: one copy, seen by all rows whose prompts begin with it. How long it
stays is the scheduler's decision, which names it by a number. Behind that lies the KV store: what earlier
runs and other tasks left there is loaded instead of computed, what further questions may want is put there,
and the reading of a long document is saved on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from pipeline.engine.packed.attention import Prefix
from pipeline.engine.packed.model_runner import PackedModelRunner
from pipeline.engine.reuse.device_time import Stopwatch, lasting
from pipeline.engine.reuse.prefix_store import LEAST_TOKENS, PrefillCheckpoints, PrefixStore
from pipeline.records import Plan, Request, document_of
from pipeline.stores.kv.entry import Loaded

_Ids = tuple[int, ...]


class PrefixCache:
    """The keys and values behind the scheduler's numbers. ``reuse`` None: only what is in memory is shared.
    ``pulse`` is called after each pass.
    """

    def __init__(self, runner: PackedModelRunner, plan: Plan, reuse: PrefixStore | None) -> None:
        self.pulse: Callable[[], None] = lambda: None
        self._reuse = reuse
        self._runner = runner
        self._plan = plan
        self._held: dict[int, Prefix] = {}
        self._saved: dict[int, tuple[_Ids, bool]] = {}
        self._read_tokens = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: int) -> Prefix:
        """One that is in memory."""
        return self._held[key]

    def drop(self, keys: Iterable[int]) -> None:
        """Let go of what was evicted; unknown ones are fine."""
        for key in keys:
            self._held.pop(key, None)

    def finish(self, key: int) -> None:
        """No question about this document waits any more: what was saved of its reading is kept or
        removed.
        """
        saved = self._saved.pop(key, None)
        if self._reuse is not None and saved is not None:
            self._reuse.finish(saved[0], keep=saved[1])

    def wants(self, request: Request) -> bool:
        """Whether the request's document may be in the KV store, or belongs there."""
        return self._reuse is not None and self._reuse.is_wanted(request.document_tokens)

    def count_shared(self, tokens: int) -> None:
        """A question found so many tokens in memory, where another had put them."""
        if self._reuse is not None:
            speed = self._reuse.session.prefill_tokens_per_second
            self._reuse.session.tally.shared += 1
            self._reuse.session.tally.saved_seconds += tokens / speed if speed else 0.0

    def read_tokens(self) -> int:
        """Tokens computed since the last call."""
        tokens, self._read_tokens = self._read_tokens, 0
        return tokens

    # ── making it ───────────────────────────────────────────────────────────────────────────────────────────

    def read_prefix(self, key: int, ids: _Ids) -> None:
        """The shared beginning of a task's prompts, loaded or computed, and kept for the next start."""
        found = self._loaded(ids) if self._reuse is not None and len(ids) >= LEAST_TOKENS else None
        prefix = found[0] if found else None
        before = prefix.tokens if prefix else 0
        watch = self._stopwatch()
        prefix = self._continued(prefix, ids, None)
        if self._reuse is not None and before < len(ids) and len(ids) >= LEAST_TOKENS:
            self._reuse.put("prefix", ids, watch.so_far(), _ranges(prefix, 0))
        self._held[key] = prefix

    def read_document(self, key: int, request: Request, base: int | None, others: int) -> bool:
        """The prompt up to the end of its document, where ``others`` that wait want it, too, or the KV store
        has or wants it; ``base`` is the key of a beginning that is in memory. False: the question may as well
        be read in one go.
        """
        begun = None if base is None else self._held[base]
        ids = document_of(request)
        if self.wants(request):
            prefix = self._with_store(key, request, begun, others)
        else:
            prefix = self._continued(begun, ids, None) if others > 0 else None
        if prefix is not None:
            self._held[key] = prefix
        return prefix is not None

    def _with_store(self, key: int, request: Request, base: Prefix | None, others: int) -> Prefix | None:
        assert self._reuse is not None
        ids = document_of(request)
        prefix, resumed = self._loaded(ids) or (None, False)
        keep = self._reuse.keeps(len(ids), len(ids) * self._plan.kv_bytes_per_token, request.awaited - others)
        long = self._reuse.session.is_long(len(ids))
        if resumed:
            self._saved[key] = ids, keep
        if prefix is None and not (others > 0 or keep or long):
            return None
        saving = (
            PrefillCheckpoints(self._reuse, ids, prefix.tokens if prefix and resumed else 0)
            if long or resumed
            else None
        )
        keep = keep and (prefix is None or prefix.tokens < len(ids))
        return self._computed(key, ids, prefix or base, keep=keep, saving=saving)

    def _computed(
        self, key: int, ids: _Ids, start: Prefix | None, *, keep: bool, saving: PrefillCheckpoints | None
    ) -> Prefix:
        """``ids`` read from where ``start`` ends, and put on the KV store if it is to be kept."""
        assert self._reuse is not None
        session, begun = self._reuse.session, start.tokens if start is not None else 0
        watch = self._stopwatch()
        prefix = self._continued(start, ids, saving)
        if prefix.tokens > begun:
            session.computed(prefix.tokens - begun, watch.so_far())
        speed = session.prefill_tokens_per_second
        took = lasting(prefix.tokens / speed) if speed else watch.so_far()
        if saving is not None and saving.used:
            saving.save(prefix.tokens, took, lambda begin: (_ranges(prefix, begin), {}))
            self._saved[key] = ids, self._saved.get(key, (ids, False))[1] or keep
        elif keep:
            self._reuse.put("document", ids, took, _ranges(prefix, 0))
        return prefix

    def _continued(self, start: Prefix | None, ids: _Ids, saving: PrefillCheckpoints | None) -> Prefix:
        """``start`` and what ``ids`` have beyond it; ``start`` itself stays as it is."""
        prefix = Prefix(0) if start is None else Prefix(start.tokens, dict(start.layers))
        watch, chunk_tokens = self._stopwatch(), self._plan.prefill_chunk_tokens
        while prefix.tokens < len(ids):
            # Stretches end at the same tokens whether or not the beginning was loaded: the numbers are the
            # same then, too.
            end = min(len(ids), (prefix.tokens // chunk_tokens + 1) * chunk_tokens)
            self._read_tokens += end - prefix.tokens
            self._runner.extend(prefix, ids[prefix.tokens : end])
            self.pulse()
            if saving is not None and end < len(ids) and saving.is_due():
                saving.save(end, watch.so_far(), lambda begin: (_ranges(prefix, begin), {}))
        return prefix

    def _stopwatch(self) -> Stopwatch:
        device = self._runner.device
        return Stopwatch((device,)) if self._reuse is None else self._reuse.session.stopwatch(device)

    def _loaded(self, ids: _Ids) -> tuple[Prefix, bool] | None:
        """What the KV store has of ``ids``, and whether it is a checkpoint."""
        assert self._reuse is not None
        found = self._reuse.find(ids)
        return None if found is None else (_prefix_of(found[0], self._runner.device), found[1])


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
