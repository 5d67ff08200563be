"""Attention of a pass on cards without flash attention (below capability 8.0, or in float32): the
memory-efficient kernel, which takes rows of different lengths that lie where they lie, too.

It knows no grouped heads: query heads of one KV head are laid side by side as queries, which copies the
queries and not the keys. Where a prompt sees itself, causal, its own keys and values are repeated instead,
which moves 2 x tokens x (H - G) x D numbers a layer, of the pass's tokens alone.

Shapes: n queries, H query heads, G KV heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from pipeline.engine.packed.attend_by_varlen import ByVarlen, Call, Source, itself
from pipeline.engine.packed.host_numbers import HostNumbers
from pipeline.engine.packed.kernels import KeysValues
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.pass_layout import PassLayout, Stretch

_ATEN: Any = torch.ops.aten
_ALIGNED = 32  # queries of a sequence, in the log-sum-exps that the kernel gives
_NO_MASK, _CAUSAL = 0, 1  # from the top left


class ByEfficient(ByVarlen):
    """See the module. ``repeated``: query heads of a KV head."""

    def __init__(self, layout: PassLayout, pool: KvPool, numbers: HostNumbers, *, repeated: int) -> None:
        self._repeated = repeated
        super().__init__(layout, pool, numbers)

    def _once_each(self) -> list[Call]:
        """Causal is from the first key on, so what a prompt had cached is seen apart from itself."""
        layout = self._layout
        calls = [
            *self._calls("pool", layout.decoding, causal=False),
            *self._calls("pass", [itself(span) for span in layout.spans], causal=True),
        ]
        return [*calls, *([self._of_nodes()] if layout.trees else [])]

    def _further(self) -> list[Call]:
        before = [
            Stretch(span.begin, span.tokens, span.first, span.cached)
            for span in self._layout.spans
            if span.first is not None and span.cached
        ]
        return [*super()._further(), *self._calls("pool", before, causal=False)]

    def _call(
        self, source: Source, stretches: Sequence[Stretch], *, causal: bool, gathered: slice | None = None
    ) -> Call:
        call = super()._call(source, stretches, causal=causal, gathered=gathered)
        queries = [each.tokens * (1 if causal else self._repeated) for each in stretches]
        room = -(-max(queries) // _ALIGNED) * _ALIGNED
        lse = [row * room + offset for row, count in enumerate(queries) for offset in range(count)]
        bounds = self._numbers.note(list(accumulate(queries, initial=0)))
        return replace(call, queries=bounds, most_queries=max(queries), lse=self._numbers.note(lse))

    def _kernel(self, call: Call, query: torch.Tensor, source: KeysValues, scaling: float) -> KeysValues:
        heads, groups = query.shape[1], source[0].shape[1]
        assert heads == groups * self._repeated, "the model has other heads than its configuration says"
        if call.causal:
            return self._computed(call, query, _repeated(source, self._repeated), scaling)
        output, lse = self._computed(call, _side_by_side(query, groups), source, scaling)
        return _apart(output, self._repeated), _apart(lse, self._repeated)

    def _computed(self, call: Call, query: torch.Tensor, source: KeysValues, scaling: float) -> KeysValues:
        """Output (n, H, D) and log-sum-exp (n, H) where there are as many KV heads."""
        assert self._sent is not None
        assert call.lse is not None
        # the public ones take no rows of different lengths
        output, lse, *_ = _ATEN._efficient_attention_forward(  # noqa: SLF001
            query[None],
            source[0][None],
            source[1][None],
            None,
            self._sent.short(call.queries),
            self._sent.short(call.keys),
            call.most_queries,
            call.most_keys,
            0.0,
            _CAUSAL if call.causal else _NO_MASK,
            True,
            scale=scaling,
            seqlen_k=self._sent.short(call.used),
        )
        by_query = lse.transpose(1, 2).reshape(-1, lse.shape[1])  # (rows x room, H)
        return output[0], by_query.index_select(0, self._long(call.lse))


def _side_by_side(query: torch.Tensor, groups: int) -> torch.Tensor:
    """(n, H, D) as (n x H / G, G, D)."""
    count, _, width = query.shape
    return query.reshape(count, groups, -1, width).transpose(1, 2).reshape(-1, groups, width)


def _apart(states: torch.Tensor, repeated: int) -> torch.Tensor:
    """(n x H / G, G, ...) as (n, H, ...)."""
    _, groups, *width = states.shape
    return states.reshape(-1, repeated, groups, *width).transpose(1, 2).reshape(-1, groups * repeated, *width)


def _repeated(source: KeysValues, times: int) -> KeysValues:
    """(n, G, D) as (n, H, D)."""
    keys, values = (states[:, :, None].expand(-1, -1, times, -1).flatten(1, 2) for states in source)
    return keys, values
