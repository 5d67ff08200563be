"""Attention of a pass on cards that have a kernel for sequences of different lengths: one call for all rows.

``torch.nn.attention.varlen.varlen_attn`` (flash attention 2, capability 8.0 and later, 16 bits) is told where
each row's run begins in the pool and how much of it counts; nothing is copied and nothing is padded. Rows
that read a prompt see what they had cached and themselves by the same call, causal to their ends. What a pass
takes in a layer: two launches to keep keys and values, two for all that is kept, two for prompts that are
not, and with label trees, or shared beginnings, two more and a join of four.

Shapes: T tokens of the pass, H query heads, G KV heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from pipeline.engine.packed.host_numbers import DeviceNumbers, HostNumbers
from pipeline.engine.packed.kernels import KeysValues, join
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.pass_layout import PassLayout, Span, Stretch, Tree
from pipeline.engine.packed.sequence import first_token

Source = Literal["pool", "pass"]


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel call: sequences of queries, each over one stretch of ``source``.

    ``tokens`` of the pass ask, all of them where None; ``queries`` are their bounds, ``keys`` the beginnings
    of what they see, ``used`` how much; ``gathered`` are the places of the pass whose keys are laid end to
    end first, where those do not lie so; ``lse`` the places of the queries among the log-sum-exps of a kernel
    that gives them row by row.
    """

    source: Source
    tokens: slice | None
    contiguous: slice | None
    queries: slice
    keys: slice
    used: slice
    most_queries: int
    most_keys: int
    causal: bool
    gathered: slice | None = None
    lse: slice | None = None


class ByVarlen:
    """The attention of one pass; its numbers are noted at once, and looked up when they were sent."""

    def __init__(self, layout: PassLayout, pool: KvPool, numbers: HostNumbers) -> None:
        self._layout, self._pool, self._numbers = layout, pool, numbers
        self._sent: DeviceNumbers | None = None
        self._places = numbers.note(layout.places)
        kept = layout.kept
        self._kept = None if kept == list(range(layout.size)) else numbers.note(kept)
        self._first = self._once_each()
        self._more = self._further()

    def arrived(self, numbers: DeviceNumbers) -> None:
        """The numbers are on the device."""
        self._sent = numbers

    # ── which calls ─────────────────────────────────────────────────────────────────────────────────────────

    def _once_each(self) -> list[Call]:
        """Calls in which each token of the pass takes part once."""
        layout = self._layout
        kept = [
            Stretch(span.begin, span.tokens, span.first, span.cached + span.tokens)
            for span in layout.spans
            if span.first is not None
        ]
        calls = [
            *self._calls("pool", [*layout.decoding, *kept], causal=True),
            *self._calls("pass", [itself(span) for span in layout.spans if span.first is None], causal=True),
        ]
        return [*calls, *([self._of_nodes()] if layout.trees else [])]

    def _further(self) -> list[Call]:
        """What tokens see besides: nodes the prompts before them, all the beginnings that they share."""
        layout = self._layout
        pool = list(layout.shared)
        near = []
        for tree in layout.trees:
            nodes, span = len(tree.feed.nodes), tree.tokens
            run = tree.feed.row.run if tree.feed.keep or not span else None
            if run is not None and tree.feed.row.cached + span:
                pool.append(Stretch(tree.begin, nodes, first_token(run), tree.feed.row.cached + span))
            elif span:
                near.append(Stretch(tree.begin, nodes, tree.begin - span, span))
        return [*self._calls("pool", pool, causal=False), *self._calls("pass", near, causal=False)]

    def _calls(self, source: Source, stretches: Sequence[Stretch], *, causal: bool) -> list[Call]:
        return [self._call(source, some, causal=causal) for some in _apart(stretches)]

    def _of_nodes(self) -> Call:
        """Each node over itself and those above it, which are laid end to end."""
        chains = [chain for tree in self._layout.trees for chain in _chains(tree)]
        begins = list(accumulate((len(chain) for chain in chains), initial=0))
        nodes = [
            Stretch(chain[0], 1, begin, len(chain)) for chain, begin in zip(chains, begins, strict=False)
        ]
        gathered = self._numbers.note([place for chain in chains for place in chain])
        return self._call("pass", nodes, causal=False, gathered=gathered)

    def _call(
        self,
        source: Source,
        stretches: Sequence[Stretch],
        *,
        causal: bool,
        gathered: slice | None = None,
    ) -> Call:
        note = self._numbers.note
        begin, end = stretches[0].begin, stretches[-1].begin + stretches[-1].tokens
        tokens = contiguous = None
        if sum(each.tokens for each in stretches) == end - begin:
            contiguous = slice(begin, end)
        else:
            tokens = note([each.begin + offset for each in stretches for offset in range(each.tokens)])
        return Call(
            source,
            tokens,
            contiguous,
            note(list(accumulate((each.tokens for each in stretches), initial=0))),
            note([*(each.first for each in stretches), 0]),
            note([each.seen for each in stretches]),
            max(each.tokens for each in stretches),
            max(each.seen for each in stretches),
            causal,
            gathered,
        )

    # ── one layer ───────────────────────────────────────────────────────────────────────────────────────────

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Output (1, T, H, D) of ``query`` (1, H, T, D); ``key`` and ``value`` (1, G, T, D) are kept as the
        layout says.
        """
        near, fresh = query[0].transpose(0, 1), (key[0].transpose(0, 1), value[0].transpose(0, 1))
        sources = {"pass": fresh, "pool": self._write(layer, fresh)}
        found = [(call, self._run(call, near, sources[call.source], scaling)) for call in self._first]
        output, lse = self._together(found, near)
        for place, call in enumerate(self._more, start=1):
            more = self._run(call, near, sources[call.source], scaling)
            self._join(call, output, lse, more, last=place == len(self._more))
        return output[None]

    def _write(self, layer: int, fresh: KeysValues) -> KeysValues:
        """Keep what is to be kept; all keys and values of the pool."""
        if self._places.start == self._places.stop:
            return self._pool.layer(layer, *fresh)
        chosen = fresh if self._kept is None else self._of(fresh, self._kept)
        return self._pool.write(layer, self._long(self._places), *chosen)

    def _of(self, states: KeysValues, tokens: slice) -> KeysValues:
        chosen = self._long(tokens)
        return states[0].index_select(0, chosen), states[1].index_select(0, chosen)

    def _run(self, call: Call, query: torch.Tensor, source: KeysValues, scaling: float) -> KeysValues:
        """Output (n, H, D) and log-sum-exp (n, H) of the call's tokens."""
        asking = query[call.contiguous]
        if call.tokens is not None:
            asking = query.index_select(0, self._long(call.tokens))
        if call.gathered is not None:
            source = self._of(source, call.gathered)
        return self._kernel(call, asking, source, scaling)

    def _kernel(self, call: Call, query: torch.Tensor, source: KeysValues, scaling: float) -> KeysValues:
        """Of ``query`` (n, H, D) over keys and values (tokens, G, D)."""
        assert self._sent is not None
        output, lse = varlen_attn(
            query,
            *source,
            self._sent.short(call.queries),
            self._sent.short(call.keys),
            call.most_queries,
            call.most_keys,
            return_aux=AuxRequest(lse=True),
            scale=scaling,
            window_size=(-1, 0) if call.causal else (-1, -1),
            enable_gqa=True,
            seqused_k=self._sent.short(call.used),
        )
        return output, lse.transpose(0, 1)  # flash attention 2 gives (H, n)

    def _together(self, found: Sequence[tuple[Call, KeysValues]], near: torch.Tensor) -> KeysValues:
        """All tokens in the order of the pass."""
        if len(found) == 1:
            return found[0][1]
        output = torch.empty_like(near, memory_format=torch.contiguous_format)
        lse = torch.empty(near.shape[:2], dtype=torch.float32, device=near.device)
        for call, (part, part_lse) in found:
            for whole, some in ((output, part), (lse, part_lse)):
                if call.tokens is None:
                    whole[call.contiguous] = some
                else:
                    whole.index_copy_(0, self._long(call.tokens), some)
        return output, lse

    def _join(
        self, call: Call, output: torch.Tensor, lse: torch.Tensor, more: KeysValues, *, last: bool
    ) -> None:
        if call.tokens is None:
            join(output[call.contiguous], lse[call.contiguous], more, last=last)
            return
        tokens = self._long(call.tokens)
        some, some_lse = output.index_select(0, tokens), lse.index_select(0, tokens)
        join(some, some_lse, more, last=last)
        output.index_copy_(0, tokens, some)
        if not last:
            lse.index_copy_(0, tokens, some_lse)

    def _long(self, where: slice) -> torch.Tensor:
        assert self._sent is not None
        return self._sent.long(where)


def itself(span: Span) -> Stretch:
    """The keys of its own tokens, in the pass."""
    return Stretch(span.begin, span.tokens, span.begin, span.tokens)


def _apart(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    """In groups, in each of which every token is at most once, in order."""
    groups: list[list[Stretch]] = []
    for stretch in sorted(stretches, key=lambda each: each.begin):
        for group in groups:
            if group[-1].begin + group[-1].tokens <= stretch.begin:
                group.append(stretch)
                break
        else:
            groups.append([stretch])
    return groups


def _chains(tree: Tree) -> list[list[int]]:
    """Of each node, its place in the pass and those of the nodes above it."""
    assert tree.feed.trie is not None
    place = {node: tree.begin + offset for offset, node in enumerate(tree.feed.nodes)}
    return [[place[above] for above in tree.feed.trie.ancestors(node)] for node in tree.feed.nodes]
