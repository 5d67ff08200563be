"""Beginnings of prompts that are read once: a task's instructions, a document about which several questions
are asked.

In memory a beginning is a ``HeldBeginning``: pages of the pool, seen by all rows whose prompts begin with it.
Where it lies and how long it stays is the scheduler's decision. Behind that lies the KV store: what earlier
runs and other tasks left there is loaded instead of computed, straight into those pages, what further
questions may want is put there, and the reading of a long document is saved on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from pipeline.engine.packed.feed import Row
from pipeline.engine.packed.model_runner import PackedModelRunner
from pipeline.engine.packed.page_allocator import Run
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.sequence import HeldBeginning
from pipeline.engine.reuse.device_time import Stopwatch, lasting
from pipeline.engine.reuse.prefix_store import LEAST_TOKENS, PrefillCheckpoints, PrefixStore
from pipeline.records import Plan, Request, document_of
from pipeline.stores.kv.entry import Loaded

_Ids = tuple[int, ...]


class PrefixCache:
    """How beginnings get into their pages. ``reuse`` None: only what is in memory is shared. ``pulse`` is
    called after each pass.
    """

    def __init__(self, runner: PackedModelRunner, plan: Plan, reuse: PrefixStore | None) -> None:
        self.pulse: Callable[[], None] = lambda: None
        self._reuse = reuse
        self._runner, self._pool = runner, runner.pool
        self._plan = plan
        self._saved: dict[int, tuple[_Ids, bool]] = {}
        self._read_tokens = 0

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

    def read_prefix(self, held: HeldBeginning, ids: _Ids) -> None:
        """The shared beginning of a task's prompts, loaded or computed, and kept for the next start."""
        row = Row(held.base, held.run)
        if self._reuse is not None and len(ids) >= LEAST_TOKENS:
            self._load(row, ids)
        before, watch = row.start + row.cached, self._stopwatch()
        self._continue(row, ids, None)
        if self._reuse is not None and before < len(ids) and len(ids) >= LEAST_TOKENS:
            self._reuse.put("prefix", ids, watch.so_far(), self._ranges(row, 0))

    def read_document(self, held: HeldBeginning, request: Request, others: int) -> bool:
        """The prompt up to the end of its document, where ``others`` that wait want it, too, or the KV store
        has or wants it. False: the question may as well be read in one go.
        """
        row, ids = Row(held.base, held.run), document_of(request)
        if self.wants(request):
            return self._with_store(held.key, row, request, others)
        if others > 0:
            self._continue(row, ids, None)
        return others > 0

    def _with_store(self, key: int, row: Row, request: Request, others: int) -> bool:
        assert self._reuse is not None
        ids = document_of(request)
        loaded, resumed = self._load(row, ids)
        keep = self._reuse.keeps(len(ids), len(ids) * self._plan.kv_bytes_per_token, request.awaited - others)
        long = self._reuse.session.is_long(len(ids))
        if resumed:
            self._saved[key] = ids, keep
        if not (loaded or others > 0 or keep or long):
            return False
        saving = None
        if long or resumed:
            saving = PrefillCheckpoints(self._reuse, ids, row.start + row.cached if resumed else 0)
        keep = keep and row.start + row.cached < len(ids) if loaded else keep
        self._compute(key, row, ids, keep=keep, saving=saving)
        return True

    def _compute(
        self, key: int, row: Row, ids: _Ids, *, keep: bool, saving: PrefillCheckpoints | None
    ) -> None:
        """``ids`` read from where ``row`` ends, and put on the KV store if they are to be kept."""
        assert self._reuse is not None
        session, begun, watch = self._reuse.session, row.start + row.cached, self._stopwatch()
        self._continue(row, ids, saving)
        if len(ids) > begun:
            session.computed(len(ids) - begun, watch.so_far())
        speed = session.prefill_tokens_per_second
        took = lasting(len(ids) / speed) if speed else watch.so_far()
        if saving is not None and saving.used:
            saving.save(len(ids), took, lambda begin: (self._ranges(row, begin), {}))
            self._saved[key] = ids, self._saved.get(key, (ids, False))[1] or keep
        elif keep:
            self._reuse.put("document", ids, took, self._ranges(row, 0))

    def _continue(self, row: Row, ids: _Ids, saving: PrefillCheckpoints | None) -> None:
        """What ``ids`` have beyond ``row`` is read into its run."""
        watch, chunk_tokens = self._stopwatch(), self._plan.prefill_chunk_tokens
        while (begin := row.start + row.cached) < len(ids):
            # Stretches end at the same tokens whether or not the beginning was loaded: the numbers are the
            # same then, too.
            end = min(len(ids), (begin // chunk_tokens + 1) * chunk_tokens)
            self._read_tokens += end - begin
            self._runner.extend(row, ids[begin:end])
            self.pulse()
            if saving is not None and end < len(ids) and saving.is_due():
                saving.save(end, watch.so_far(), lambda begin: (self._ranges(row, begin), {}))

    def _stopwatch(self) -> Stopwatch:
        device = self._pool.device
        return Stopwatch((device,)) if self._reuse is None else self._reuse.session.stopwatch(device)

    def _load(self, row: Row, ids: _Ids) -> tuple[bool, bool]:
        """Whether the KV store has more of ``ids`` than ``row``, whose run then has it, too; and whether it
        is a checkpoint.
        """
        assert self._reuse is not None
        found = self._reuse.find(ids)
        if found is None or found[0].tokens <= row.start:
            return False, False
        loaded, resumed = found
        _restore(self._pool, row, loaded)
        return True, resumed

    def _ranges(self, row: Row, begin: int) -> dict[str, torch.Tensor]:
        """Keys and values of all layers as the store has them: (G, tokens, D), those from token ``begin``.

        Copies: the pages will be others' before the store has written them.
        """
        ranges = {}
        for layer, pair in _stretches(self._pool, row, begin):
            for name, parts in zip("kv", pair, strict=True):
                ranges[f"L{layer}.{name}"] = torch.cat(parts).transpose(0, 1).contiguous()
        return ranges


def _parts(row: Row, begin: int) -> list[tuple[Run, int, int]]:
    """Where the tokens of ``row`` from ``begin`` on lie: runs, and which tokens of them."""
    held = [] if row.seen is None else [(part.run, part.begin, part.tokens) for part in row.seen.chain]
    assert row.run is not None
    held.append((row.run, row.start, row.start + row.cached))
    return [(run, max(0, begin - first), end - first) for run, first, end in held if end > begin]


def _stretches(
    pool: KvPool, row: Row, begin: int
) -> Iterator[tuple[int, tuple[list[torch.Tensor], list[torch.Tensor]]]]:
    """Of each layer, keys and values of ``row`` from token ``begin`` on, (n, G, D) each, run by run."""
    parts = [list(pool.read(*part)) for part in _parts(row, begin)]
    for layers in zip(*parts, strict=True):
        yield layers[0][0], ([pair[0] for _, pair in layers], [pair[1] for _, pair in layers])


def _restore(pool: KvPool, row: Row, loaded: Loaded) -> None:
    """Put what was loaded beyond the shared beginning of ``row`` into its run."""
    assert row.run is not None
    for name, keys in loaded.ranges.items():
        if name.endswith(".k"):
            pair = keys, loaded.ranges[f"{name[:-2]}.v"]
            states = [kept[:, row.start :].transpose(0, 1) for kept in pair]
            pool.fill(int(name[1:-2]), row.run, states)
    row.cached = loaded.tokens - row.start
