"""A pass in plain numbers: whose tokens follow whose, what is written where, who sees which keys. No tensors.

Rows lie in the pass by what they share and by their place in the pool, so that everyone who sees a shared
beginning is side by side, and keys are read in the order in which they lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.engine.packed.feed import Feed
from pipeline.engine.packed.sequence import first_token


@dataclass(slots=True)
class Stretch:
    """``tokens`` of the pass from ``begin`` on that all see ``seen`` tokens of the pool from ``first`` on."""

    begin: int
    tokens: int
    first: int
    seen: int


@dataclass(slots=True)
class Span:
    """``tokens`` of one row from ``begin`` on, that follow each other: each sees those before it.

    Where they are kept (``first`` not None), they are written behind ``cached`` tokens of a run that begins
    at ``first``, which they see, too.
    """

    begin: int
    tokens: int
    first: int | None = None
    cached: int = 0


@dataclass(slots=True)
class Written:
    """``tokens`` of the pass from ``begin`` on are kept from token ``place`` of the pool on."""

    begin: int
    tokens: int
    place: int


@dataclass(slots=True)
class Tree:
    """The nodes of ``feed``, from ``begin`` on, behind the ``tokens`` of its row that are in the pass."""

    begin: int
    tokens: int
    feed: Feed


@dataclass(slots=True)
class PassLayout:
    """Feeds end to end. ``ids`` and ``positions`` are of all tokens; ``wanted`` are those whose logits are
    asked for, in the order in which the feeds were given; ``late`` are tokens that only the device knows, and
    their places there.

    ``written`` lists which tokens are kept where. ``decoding`` are rows
    of one token that see what they have cached and themselves; ``spans`` follow, of which ``cached`` see
    what they have cached besides; ``trees`` are label trees; ``shared`` see shared beginnings.
    """

    size: int = 0
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    late: list[tuple[int, int]] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    decoding: list[Stretch] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    cached: list[Stretch] = field(default_factory=list)
    trees: list[Tree] = field(default_factory=list)
    shared: list[Stretch] = field(default_factory=list)

    @property
    def kept(self) -> list[int]:
        """Tokens of the pass that are kept."""
        return [each.begin + offset for each in self.written for offset in range(each.tokens)]

    @property
    def places(self) -> list[int]:
        """Where in the pool."""
        return [each.place + offset for each in self.written for offset in range(each.tokens)]

    @property
    def only_decodes(self) -> bool:
        """Whether no prompt and no tree is read in it."""
        return not (self.spans or self.trees)


def by_place(rows: Sequence[Feed]) -> list[Feed]:
    """Decoding rows as they lie in the pool."""
    return sorted(rows, key=_place)


def in_pairs(rows: Sequence[Feed]) -> list[Feed]:
    """Decoding rows of like lengths two and two, each two as they lie in the pool."""
    longest_last = sorted(rows, key=lambda feed: feed.row.cached)
    pairs = (longest_last[begin : begin + 2] for begin in range(0, len(rows), 2))
    return [feed for pair in pairs for feed in sorted(pair, key=_place)]


def _place(feed: Feed) -> int:
    return -1 if feed.row.run is None else feed.row.run.start


def laid_out(feeds: Sequence[Feed], order: Callable[[Sequence[Feed]], list[Feed]]) -> PassLayout:
    """``feeds`` as one pass; ``order`` brings the rows that decode, of those who share a beginning, into
    theirs.
    """
    layout, begins = PassLayout(), {}
    for feed in _in_order(feeds, order):
        begins[id(feed)] = layout.size
        _add(layout, feed)
    layout.wanted = [begins[id(feed)] + offset for feed in feeds for offset in feed.logits]
    return layout


def _in_order(feeds: Sequence[Feed], order: Callable[[Sequence[Feed]], list[Feed]]) -> Iterator[Feed]:
    by_chain: dict[tuple[int, ...], list[Feed]] = {}
    for feed in feeds:
        chain = feed.row.seen.chain if feed.row.seen is not None else ()
        by_chain.setdefault(tuple(held.run.start for held in chain), []).append(feed)
    for _, members in sorted(by_chain.items()):
        yield from order([feed for feed in members if feed.decodes])
        yield from (feed for feed in members if not feed.decodes)


def _add(layout: PassLayout, feed: Feed) -> None:
    row, begin, tokens = feed.row, layout.size, len(feed.tokens)
    position = row.start + row.cached
    layout.ids += feed.tokens
    if feed.late is not None:
        layout.late.append((begin, feed.late))
    layout.positions += range(position, position + tokens)
    if feed.trie is not None:
        layout.ids += [feed.trie.nodes[node].token for node in feed.nodes]
        layout.positions += [position + tokens + feed.trie.nodes[node].depth for node in feed.nodes]
    layout.size += feed.size
    _see_shared(layout, feed, begin)
    if feed.decodes:
        assert row.run is not None
        first = first_token(row.run)
        layout.decoding.append(Stretch(begin, 1, first, row.cached + 1))
        layout.written.append(Written(begin, 1, first + row.cached))
    else:
        _read(layout, feed, begin)


def _read(layout: PassLayout, feed: Feed, begin: int) -> None:
    """Tokens of a prompt, nodes of a tree."""
    row, tokens = feed.row, len(feed.tokens)
    first = None if row.run is None else first_token(row.run)
    if tokens:
        kept = first if feed.keep else None
        layout.spans.append(Span(begin, tokens, kept, row.cached))
        if kept is not None:
            layout.written.append(Written(begin, tokens, kept + row.cached))
    if feed.nodes:
        layout.trees.append(Tree(begin + tokens, tokens, feed))
    if row.cached:
        assert first is not None
        layout.cached.append(Stretch(begin, feed.size, first, row.cached))


def _see_shared(layout: PassLayout, feed: Feed, begin: int) -> None:
    """The beginnings of the row; neighbours who see the same are one stretch."""
    for held in feed.row.seen.chain if feed.row.seen is not None else ():
        first, seen = first_token(held.run), held.tokens - held.begin
        for stretch in layout.shared:
            if stretch.first == first and stretch.begin + stretch.tokens == begin:
                stretch.tokens += feed.size
                break
        else:
            layout.shared.append(Stretch(begin, feed.size, first, seen))
