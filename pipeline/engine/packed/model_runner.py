"""Packed passes over one model: rows of documents that read their prompts, decode and score side by side,
without padding.

Each pass is one forward call over the next tokens of all live rows and the prompts of newcomers, end to end
(continuous batching: Yu et al., Orca, 2022).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.engine.kv.slot_pool import SlotClass
from pipeline.engine.packed import attention
from pipeline.engine.packed.attention import Cached, Fresh, Pass, Prefix, Writing
from pipeline.engine.packed.label_trie import LabelTrie
from pipeline.engine.packed.page_pool import Row


@dataclass(slots=True)
class Feed:
    """Tokens of one row that go into a pass: a stretch of its prompt, the token it decoded, or nodes of a
    label tree.

    ``nodes`` are tree nodes that follow the tokens, with all their ancestors; they see the row's tokens and
    those. ``keep`` writes keys and values of the tokens (never of the nodes). ``logits`` are the offsets in
    ``tokens`` + ``nodes`` whose logits are wanted. ``late``: its only token is not known to the host yet; it
    is the one at this place of the runner's ``chosen``.
    """

    row: Row
    tokens: Sequence[int]
    keep: bool
    logits: Sequence[int]
    trie: LabelTrie | None = None
    nodes: Sequence[int] = ()
    late: int | None = None

    @property
    def size(self) -> int:
        """Tokens of the pass."""
        return len(self.tokens) + len(self.nodes)


class PackedModelRunner:
    """Runs packed passes. The model must call attention through transformers' interface; ``supports`` finds
    out by trying.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model
        self.device = device
        self._context = attention.context_of(model)
        self.chosen: torch.Tensor | None = None
        """Token ids (n,) on the device that the last pass has chosen."""

    def read_prefix(self, ids: Sequence[int], chunk_tokens: int) -> Prefix:
        """Prefill a shared prefix once, in chunks."""
        prefix = Prefix(0)
        while prefix.tokens < len(ids):
            self.extend(prefix, ids[prefix.tokens : prefix.tokens + chunk_tokens])
        return prefix

    def extend(self, prefix: Prefix, ids: Sequence[int]) -> None:
        """Read ``ids`` behind ``prefix``, in one pass, and add them to it."""
        tokens = list(ids)
        current = Pass(len(tokens), filling=prefix, fresh=[self._fresh([(0, len(tokens))], None)])
        if prefix.tokens:
            current.prefixes.append((prefix, None))
        self._call(
            self._tensor(tokens),
            range(prefix.tokens, prefix.tokens + len(tokens)),
            current,
            [len(tokens) - 1],
        )
        prefix.tokens += len(tokens)

    def run(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """One pass over ``feeds``; returns float32 logits (wanted, vocabulary), feed by feed in their
        order.
        """
        layout = _PassInputs(feeds)
        current = Pass(layout.size)
        self._see_prefixes(current, layout)
        self._keep(current, layout)
        self._see_cached(current, layout)
        self._see_fresh(current, layout)
        logits = self._call(self._ids(layout), layout.positions, current, layout.wanted)
        for feed in feeds:
            feed.row.cached += len(feed.tokens) if feed.keep else 0
        return logits

    def _ids(self, layout: _PassInputs) -> torch.Tensor:
        """(tokens,), those that only the device knows put in there."""
        late = [(begin, feed.late) for begin, feed in layout if feed.late is not None]
        ids = self._tensor(layout.ids)
        if late:
            assert self.chosen is not None
            places, sources = (self._tensor(column) for column in zip(*late, strict=True))
            ids.index_copy_(0, places, self.chosen.index_select(0, sources))
        return ids

    def _call(
        self, ids: torch.Tensor, positions: Iterable[int], current: Pass, wanted: Sequence[int]
    ) -> torch.Tensor:
        with self._context.running(current):
            output = self._model(
                input_ids=ids[None],
                position_ids=self._tensor(list(positions))[None],
                use_cache=False,
                logits_to_keep=self._tensor(wanted),
            )
        logits: torch.Tensor = output.logits[0]
        return logits.float()

    def _see_prefixes(self, current: Pass, layout: _PassInputs) -> None:
        groups: dict[int, tuple[Prefix, list[int]]] = {}
        for begin, feed in layout:
            if feed.row.prefix is not None:
                groups.setdefault(id(feed.row.prefix), (feed.row.prefix, []))[1].extend(
                    range(begin, begin + feed.size)
                )
        for prefix, tokens in groups.values():
            current.prefixes.append((prefix, None if len(tokens) == layout.size else self._tensor(tokens)))

    def _keep(self, current: Pass, layout: _PassInputs) -> None:
        groups: dict[int, tuple[SlotClass, list[tuple[int, int, int]]]] = {}
        for begin, feed in layout:
            if feed.keep and feed.row.storage is not None:
                places = groups.setdefault(id(feed.row.storage), (feed.row.storage, []))[1]
                places.extend(
                    (begin + offset, feed.row.slot, feed.row.cached + offset)
                    for offset in range(len(feed.tokens))
                )
        for storage, places in groups.values():
            tokens, slots, columns = (self._tensor(column) for column in zip(*places, strict=True))
            current.writing.append(Writing(storage, tokens, slots, columns))

    def _see_cached(self, current: Pass, layout: _PassInputs) -> None:
        """Rows that have something cached see it; a single kept token sees itself there too, which saves the
        second kernel call.
        """
        groups: dict[tuple[int, int], list[tuple[int, Feed]]] = {}
        for begin, feed in layout:
            if feed.row.storage is not None and feed.row.cached:
                groups.setdefault((id(feed.row.storage), feed.size), []).append((begin, feed))
        for (_, size), members in groups.items():
            members.sort(key=lambda member: member[1].row.slot)
            storage = members[0][1].row.storage
            assert storage is not None
            lengths = [feed.row.cached + (1 if _alone(feed) else 0) for _, feed in members]
            tokens = self._tensor([list(range(begin, begin + size)) for begin, _ in members])
            slots = self._tensor([feed.row.slot for _, feed in members])
            current.cached.append(Cached(storage, tokens, slots, self._tensor(lengths), max(lengths)))

    def _see_fresh(self, current: Pass, layout: _PassInputs) -> None:
        """Everything else sees its neighbours; stretches of like length share a kernel call, trees apart from
        plain ones.
        """
        plain = [(begin, begin + feed.size) for begin, feed in layout if not feed.nodes and not _alone(feed)]
        for group in _like_lengths(plain):
            current.fresh.append(self._fresh(group, None))
        trees = [(begin, feed) for begin, feed in layout if feed.nodes]
        for members in _like_sizes(trees):
            stretches = [(begin, begin + feed.size) for begin, feed in members]
            current.fresh.append(
                self._fresh(stretches, _visible([feed for _, feed in members]).to(self.device))
            )

    def _fresh(self, stretches: Sequence[tuple[int, int]], visible: torch.Tensor | None) -> Fresh:
        longest = max(end - begin for begin, end in stretches)
        index = [[*range(begin, end), *[end - 1] * (longest - (end - begin))] for begin, end in stretches]
        real = [
            row * longest + offset
            for row, (begin, end) in enumerate(stretches)
            for offset in range(end - begin)
        ]
        tokens = [token for begin, end in stretches for token in range(begin, end)]
        return Fresh(self._tensor(index), self._tensor(real), self._tensor(tokens), visible)

    def _tensor(self, values: Sequence[Any]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)


class _PassInputs:
    """Feeds end to end: the ids and positions of the pass, and which of its tokens' logits are wanted."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = feeds
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.wanted: list[int] = []
        self._begins: list[int] = []
        for feed in feeds:
            begin = len(self.ids)
            self._begins.append(begin)
            first = feed.row.start + feed.row.cached
            self.ids += feed.tokens
            self.positions += range(first, first + len(feed.tokens))
            if feed.trie is not None:
                after = first + len(feed.tokens)
                self.ids += [feed.trie.nodes[node].token for node in feed.nodes]
                self.positions += [after + feed.trie.nodes[node].depth for node in feed.nodes]
            self.wanted += [begin + offset for offset in feed.logits]
        self.size = len(self.ids)

    def __iter__(self) -> Any:
        return zip(self._begins, self._feeds, strict=True)


def _alone(feed: Feed) -> bool:
    """A decoded token: kept, single, with a cached past."""
    return feed.keep and len(feed.tokens) == 1 and not feed.nodes and feed.row.cached > 0


def _like_lengths(stretches: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Stretches in groups whose longest is at most a quarter longer than their shortest."""
    groups: list[list[tuple[int, int]]] = []
    for stretch in sorted(stretches, key=lambda stretch: stretch[0] - stretch[1]):
        longest = groups[-1][0][1] - groups[-1][0][0] if groups else 0
        if groups and (stretch[1] - stretch[0]) * 5 >= longest * 4:
            groups[-1].append(stretch)
        else:
            groups.append([stretch])
    return groups


def _like_sizes(trees: Sequence[tuple[int, Feed]]) -> list[list[tuple[int, Feed]]]:
    groups: list[list[tuple[int, Feed]]] = []
    for begin, feed in sorted(trees, key=lambda tree: -tree[1].size):
        if groups and feed.size * 5 >= groups[-1][0][1].size * 4:
            groups[-1].append((begin, feed))
        else:
            groups.append([(begin, feed)])
    return groups


def _visible(feeds: Sequence[Feed]) -> torch.Tensor:
    """(rows, 1, longest, longest): tokens see earlier tokens, nodes see all tokens and their own ancestors.
    Padding sees itself.
    """
    longest = max(feed.size for feed in feeds)
    visible = torch.eye(longest, dtype=torch.bool).repeat(len(feeds), 1, 1)
    for row, feed in enumerate(feeds):
        count = len(feed.tokens)
        visible[row, :count, :count] = torch.ones(count, count, dtype=torch.bool).tril()
        visible[row, count : feed.size, :count] = True
        place = {node: count + offset for offset, node in enumerate(feed.nodes)}
        for node in feed.nodes:
            assert feed.trie is not None
            visible[row, place[node], [place[above] for above in feed.trie.ancestors(node)]] = True
    return visible[:, None]
