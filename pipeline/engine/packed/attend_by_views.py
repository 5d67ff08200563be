"""Attention of a pass by views of the pool: a kernel call for each row, of exactly the keys that it sees.

The way of processors, where a call costs microseconds and reading keys that nobody needs costs more. Measured
on two AVX512 cores with the demo model's heads: prompts of 380 to 520 tokens at 49 GFLOP/s, gathered into one
rectangle 31; decoding 32 rows of 450 tokens in 2.0 ms a layer, as a padded batch of preallocated slots 1.9,
row by row 2.6: a kernel call keeps two cores busy only with an even number of tasks, so rows decode in pairs
of like lengths (any two starts are a batch with a stride).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pipeline.engine.packed.host_numbers import DeviceNumbers, HostNumbers
from pipeline.engine.packed.kernels import KeysValues, ancestry, attend, join
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.pass_layout import PassLayout, Stretch, Tree
from pipeline.engine.transfers import carried

_LIKE_LENGTHS = 1.25
"""Of two rows that decode as one batch: more padding than that costs more than a call."""


@dataclass(slots=True)
class _Decode:
    """One row that decodes, or two: ``begin`` in the pass, ``first`` in the pool, ``step`` to the second's
    first token; ``longest`` keys, of which ``mask`` (2, 1, 1, longest) hides those that are not the row's.
    """

    begin: int
    rows: int
    first: int
    step: int
    longest: int
    mask: torch.Tensor | None = None


class ByViews:
    """The attention of one pass."""

    def __init__(self, layout: PassLayout, pool: KvPool, numbers: HostNumbers) -> None:
        self._layout, self._pool, self._device = layout, pool, pool.device
        self._places = numbers.note(layout.places)
        kept = layout.kept
        self._written = None if kept == list(range(layout.size)) else numbers.note(kept)
        self._numbers: DeviceNumbers | None = None
        self._decodes: list[_Decode] = []
        self._masks: list[torch.Tensor] = []
        self._prepared = False

    def arrived(self, numbers: DeviceNumbers) -> None:
        """The numbers are on the device."""
        self._numbers = numbers

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Output (1, T, H, D) of ``query`` (1, H, T, D); ``key`` and ``value`` (1, G, T, D) are kept as the
        layout says.
        """
        if not self._prepared:
            self._prepare(query.dtype)
        groups = key.shape[1]
        kept = self._write(layer, key, value)
        parts = list(self._decoded(query, kept, scaling)) if self._decodes else []
        for span in self._layout.spans:
            q, k, v = (states[:, :, span.begin : span.begin + span.tokens] for states in (query, key, value))
            parts.append((span.begin, _by_token(attend(q, k, v, scaling, causal=True), groups)))
        for tree, mask in zip(self._layout.trees, self._masks, strict=True):
            parts.append((tree.begin, _by_token(_nodes(query, key, value, tree, mask, scaling), groups)))
        parts.sort(key=lambda part: part[0])
        output = torch.cat([part[0] for _, part in parts])
        joined = [*self._layout.cached, *self._layout.shared]
        if joined:
            lse = torch.cat([part[1] for _, part in parts])
            for place, stretch in enumerate(joined, start=1):
                own = slice(stretch.begin, stretch.begin + stretch.tokens)
                more = self._seen(query, kept, stretch, scaling)
                join(output[own], lse[own], more, last=place == len(joined))
        return output.flatten(1, 2)[None]

    def _prepare(self, dtype: torch.dtype) -> None:
        """What all layers have in common, in the numbers that they compute in."""
        pairs = _pairs(self._layout.decoding, self._pool.tokens)
        self._decodes = [_decode(rows, dtype, self._device) for rows in pairs]
        self._masks = [carried(_tree_mask(tree, dtype), self._device) for tree in self._layout.trees]
        self._prepared = True

    def _write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> KeysValues:
        """Keep what is to be kept; (1, G, tokens of the pool, D) of both."""
        assert self._numbers is not None
        new = key[0].transpose(0, 1), value[0].transpose(0, 1)
        if self._places.start == self._places.stop:
            keys, values = self._pool.layer(layer, *new)
        else:
            if self._written is not None:
                written = self._numbers.long(self._written)
                new = new[0].index_select(0, written), new[1].index_select(0, written)
            keys, values = self._pool.write(layer, self._numbers.long(self._places), *new)
        return keys.transpose(0, 1)[None], values.transpose(0, 1)[None]

    def _decoded(
        self, query: torch.Tensor, kept: KeysValues, scaling: float
    ) -> Iterator[tuple[int, KeysValues]]:
        """Of rows that decode. Query heads of one KV head are laid side by side as queries: each key is read
        once.
        """
        near = query[0].transpose(0, 1).view(query.shape[2], kept[0].shape[1], -1, query.shape[-1])
        for each in self._decodes:
            keys, values = (_batch(states, each) for states in kept)
            some = near[each.begin : each.begin + each.rows]
            yield each.begin, attend(some, keys, values, scaling, mask=each.mask)

    def _seen(self, query: torch.Tensor, kept: KeysValues, stretch: Stretch, scaling: float) -> KeysValues:
        """All tokens of ``stretch`` over all its keys, (n, G, H / G, D) and (n, G, H / G)."""
        near = query[:, :, stretch.begin : stretch.begin + stretch.tokens]
        keys, values = (states[:, :, stretch.first : stretch.first + stretch.seen] for states in kept)
        return _by_token(attend(near, keys, values, scaling), keys.shape[1])


def _by_token(found: KeysValues, groups: int) -> KeysValues:
    """(1, H, q, D) and (1, H, q) as (q, G, H / G, D) and (q, G, H / G)."""
    output, lse = found[0][0].transpose(0, 1), found[1][0].transpose(0, 1)
    queries, _, width = output.shape
    return output.reshape(queries, groups, -1, width), lse.reshape(queries, groups, -1)


def _pairs(rows: Sequence[Stretch], tokens: int) -> list[list[Stretch]]:
    """Neighbours of like lengths, two and two: the second behind the first in the pool of ``tokens``, and
    both with as much behind their beginnings as the longer one sees.
    """
    pairs: list[list[Stretch]] = []
    for row in rows:
        if pairs and len(pairs[-1]) == 1 and _pair(pairs[-1][0], row, tokens):
            pairs[-1].append(row)
        else:
            pairs.append([row])
    return pairs


def _pair(one: Stretch, other: Stretch, tokens: int) -> bool:
    shorter, longer = sorted((one.seen, other.seen))
    adjacent = one.begin + 1 == other.begin and one.first < other.first
    return adjacent and longer <= _LIKE_LENGTHS * shorter and other.first + longer <= tokens


def _decode(rows: Sequence[Stretch], dtype: torch.dtype, device: torch.device) -> _Decode:
    longest = max(row.seen for row in rows)
    mask = None
    if any(row.seen < longest for row in rows):
        mask = torch.zeros(len(rows), 1, 1, longest, dtype=dtype, device=device)
        for place, row in enumerate(rows):
            mask[place, ..., row.seen :] = float("-inf")
    return _Decode(rows[0].begin, len(rows), rows[0].first, rows[-1].first - rows[0].first, longest, mask)


def _batch(kept: torch.Tensor, each: _Decode) -> torch.Tensor:
    """The rows' keys or values as a batch (rows, G, longest, D), of ``kept`` (1, G, tokens, D)."""
    if each.rows == 1:
        return kept[:, :, each.first : each.first + each.longest]
    _, groups, _, width = kept.shape
    _, *strides = kept.stride()
    shape = (each.rows, groups, each.longest, width)
    return kept.as_strided(
        shape, (each.step * strides[1], *strides), kept.storage_offset() + each.first * strides[1]
    )


def _nodes(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: Tree,
    mask: torch.Tensor,
    scaling: float,
) -> KeysValues:
    """Nodes of a label tree over the tokens before them and their own ancestors."""
    end = tree.begin + len(tree.feed.nodes)
    keys, values = (states[:, :, tree.begin - tree.tokens : end] for states in (key, value))
    return attend(query[:, :, tree.begin : end], keys, values, scaling, mask=mask)


def _tree_mask(tree: Tree, dtype: torch.dtype) -> torch.Tensor:
    """(1, 1, nodes, tokens + nodes): 0 where a node sees, else minus infinity."""
    assert tree.feed.trie is not None
    mask = torch.full((len(tree.feed.nodes), tree.tokens + len(tree.feed.nodes)), float("-inf"), dtype=dtype)
    mask[:, : tree.tokens] = 0
    rows, columns = ancestry(tree.feed.trie, tuple(tree.feed.nodes))
    mask[rows, columns + tree.tokens] = 0
    return mask[None, None]
