"""What a row is, and what goes of it into a pass: token ids and places in the pool of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.engine.packed.label_trie import LabelTrie
from pipeline.engine.packed.page_allocator import Run
from pipeline.engine.packed.sequence import HeldBeginning, tokens_of


@dataclass(slots=True, eq=False)
class Row:
    """A prompt in the model: what it sees that others see, too, the run that keeps its own tokens (None: they
    are not kept), and how many of these are there (``cached``).
    """

    seen: HeldBeginning | None
    run: Run | None = None
    cached: int = 0

    @property
    def start(self) -> int:
        """Position of the row's first own token."""
        return tokens_of(self.seen)


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

    @property
    def decodes(self) -> bool:
        """A decoded token: kept, single, with a cached past."""
        return self.keep and len(self.tokens) == 1 and not self.nodes and self.row.cached > 0
