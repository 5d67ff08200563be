"""What the scheduler of packed passes is told and says: numbers, no tokens and no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.engine.packed.page_allocator import Run

PAGE_TOKENS = 16
"""Tokens of one page of KV memory. A row of 1,000 tokens leaves 0.7 % of its pages empty."""


def pages_of(tokens: int) -> int:
    """Pages that ``tokens`` fill."""
    return -(-tokens // PAGE_TOKENS)


def first_token(run: Run) -> int:
    """Of the pool, that a run begins with."""
    return run.start * PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Beginning:
    """A beginning of prompts that may be read once for several of them. Equal keys mean equal tokens."""

    key: int
    tokens: int


@dataclass(slots=True, eq=False)
class HeldBeginning:
    """A beginning in memory: ``run`` keeps what it has beyond ``base``, with which it begins.

    ``users`` are those who need its pages: the cache, sequences in the model, longer beginnings.
    """

    key: int
    tokens: int
    run: Run
    base: HeldBeginning | None = None
    users: int = 1

    @property
    def chain(self) -> tuple[HeldBeginning, ...]:
        """Those that it is made of, the one with the first tokens first, itself last."""
        return (*self.base.chain, self) if self.base is not None else (self,)

    @property
    def begin(self) -> int:
        """The first token that is in its own run."""
        return tokens_of(self.base)

    @property
    def pages(self) -> int:
        """Of its own run."""
        return self.run.pages


def tokens_of(beginning: Beginning | HeldBeginning | None) -> int:
    """Its tokens; none of nothing."""
    return 0 if beginning is None else beginning.tokens


@dataclass(slots=True)
class Sequence:
    """A prompt of ``prompt_tokens``, behind which up to ``new_tokens`` are decoded, or labels are scored (0).

    ``prefix`` is what all prompts of its task begin with, ``document`` goes on to the end of the document;
    the prompt is longer than either. ``stored``: the document may be in, or is wanted by, the KV store.
    ``awaited``: further questions about the document are still to come. Labels are the ``tree_tokens`` nodes
    of tree number ``tree``; ``longest_label`` of them follow each other.

    The scheduler fills in the rest. ``apart``: its document may be read before it, for others too; ``seen``
    is what need not be read, ``unread`` tokens are still to be read, with the last of them ``riding`` nodes
    of the label tree; ``asked`` are the nodes that its search, where it is searched, feeds to the next pass;
    ``pages`` are its own, in ``run`` while it is in the model and has any.
    """

    number: int
    prompt_tokens: int
    new_tokens: int = 0
    prefix: Beginning | None = None
    document: Beginning | None = None
    stored: bool = False
    awaited: bool = False
    tree: int = 0
    tree_tokens: int = 0
    longest_label: int = 0
    arrival: int = 0
    apart: bool = True
    seen: HeldBeginning | None = None
    unread: int = 0
    riding: int = 0
    asked: int = 0
    pages: int = 0
    run: Run | None = None

    @property
    def kept_tokens(self) -> int:
        """The most whose keys and values are kept: prompt and text; those of labels are not."""
        return self.prompt_tokens + self.new_tokens

    @property
    def decodes(self) -> bool:
        """Whether it writes text; others are scored."""
        return self.new_tokens > 0

    @property
    def reading_tokens(self) -> int:
        """What it still takes of passes until its prompt is read, its label tree included."""
        return self.unread + self.riding if self.unread else 0

    @property
    def logits(self) -> int:
        """The most positions that its next answer is found at: the last of its prompt and the nodes that
        ride, the last of its text, the nodes of its search.
        """
        return 1 + self.riding if self.unread else max(1, self.asked)

    @property
    def beginnings(self) -> list[Beginning]:
        """Its prefix and its document, as far as it has them."""
        return [beginning for beginning in (self.prefix, self.document) if beginning is not None]

    @property
    def turn(self) -> tuple[int, int, int]:
        """Longest first; questions about one document side by side, whatever their own lengths."""
        if self.document is None:
            return -(self.prompt_tokens + max(self.new_tokens, self.longest_label)), 0, self.number
        return -self.document.tokens, self.document.key, self.number


@dataclass(slots=True)
class Budget:
    """At most so many rows in the model, ``decoding_rows`` of them writing text; prompt tokens read in one
    pass, which the first may exceed; pages of KV memory, beginnings of prompts included; positions whose
    ``logits`` one pass is asked for (None: any number), which the first may exceed, too.
    """

    rows: int
    tokens: int
    pages: int
    decoding_rows: int
    logits: int | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """``admitted`` sequences run from now on. ``read``: this beginning, wanted by sequence ``reader``, is to
    be read into its pages before more can be admitted.
    """

    admitted: tuple[int, ...] = ()
    read: HeldBeginning | None = None
    reader: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """``prefill``: sequences that read their prompts, and how many tokens of them; ``decode``: those that
    have read theirs.
    """

    prefill: Mapping[int, int]
    decode: tuple[int, ...]
