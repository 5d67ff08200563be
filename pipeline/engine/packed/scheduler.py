"""Who reads, who decodes, who waits: the policy of packed passes, on plain ints. No tensors, no clock.

The engine adds sequences, then for each pass lets it ``admit`` some of those that wait, asks what to
``schedule``, carries that out, and says how far each has got (``advance``) or that it has left (``forget``).
KV memory is counted in pages of ``PAGE_TOKENS`` tokens; how a pool stores them is the pool's business.

A sequence gets the pages of its whole life when it is admitted, so none that runs ever has to make way for
another: what is evicted are beginnings of prompts (``CachedBeginnings``), which are read again if need be.
Only when memory runs out all the same does everything that runs leave at once (``give_up``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from pipeline.engine.backoff import halved
from pipeline.engine.packed.cached_beginnings import CachedBeginnings
from pipeline.engine.packed.running import RunningSequences
from pipeline.engine.packed.sequence import Admission, Beginning, Budget, Pass, Sequence, pages_of, tokens_of

RIDING_NODES = 12
"""Label trees up to so many nodes ride along with the prompt: cheaper than keeping it and coming back."""
_PATIENCE = 1024
_PREFIX_SHARE = 4
_RECENT_SHARE = 8


class Scheduler:
    """See the module. ``pages_for`` gives the pages that a pool takes for a row of so many tokens;
    ``patience`` is after how many later arrivals the oldest that waits goes first.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        pages_for: Callable[[int], int] = pages_of,
        patience: int = _PATIENCE,
    ) -> None:
        self.budget = budget
        self.cached = CachedBeginnings(budget.pages // _PREFIX_SHARE, budget.pages // _RECENT_SHARE)
        self.searched: set[int] = set()
        """Numbers of label trees that are searched in rounds, where they are too large to ride."""
        self._pages_for, self._patience = pages_for, patience
        self._waiting: dict[int, Sequence] = {}  # in the order of their arrival
        self._turns: list[tuple[tuple[int, int, int], int]] = []
        self._running = RunningSequences()
        self._arrivals = 0
        self._overtaken = 0
        self._computed_tokens = self._read_for_next = 0
        self._newcomers = 0

    # ── what is there ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not (self._waiting or self._running)

    @property
    def running(self) -> tuple[int, ...]:
        """Numbers of the sequences in the model, as they were admitted."""
        return self._running.numbers

    @property
    def pages(self) -> int:
        """Held by the sequences in the model and the documents that some ask about."""
        return self._running.pages + self.cached.pages

    @property
    def _tokens_left(self) -> int:
        """Of the next pass: beginnings that were computed for its newcomers count, too."""
        return self.budget.tokens - self._computed_tokens - self._running.reading_tokens

    def sequence(self, number: int) -> Sequence:
        """One that waits or runs."""
        return self._running.get(number) or self._waiting[number]

    # ── coming and going ────────────────────────────────────────────────────────────────────────────────────

    def add(self, sequence: Sequence) -> None:
        """``sequence`` waits from now on."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._waiting[sequence.number] = sequence
        self.cached.expect(sequence)
        heapq.heappush(self._turns, (sequence.turn, sequence.arrival))

    def forget(self, number: int) -> bool:
        """The sequence is answered, released or handed on; its pages come back. True when it was the last one
        about its document.
        """
        sequence = self._running.remove(number) or self._waiting.pop(number)
        sequence.pages = 0
        return self.cached.forget(sequence)

    def give_up(self) -> tuple[int, ...]:
        """A pass failed: what must be forgotten, so that the rest can go on. Everything in the model, or,
        where that is empty, the one whose turn it was. No beginning is in memory any more.
        """
        self.cached.clear()
        self._begin_round()
        if self._running:
            return self.running
        first = self._next()
        return () if first is None else (first.number,)

    def shrink(self, rows: int, least_pages: int) -> None:
        """Memory ran out with ``rows`` in the model: half of them, and half the pages, are the budget now."""
        budget = self.budget
        budget.rows = halved(budget.rows, rows)
        budget.pages = halved(budget.pages, budget.pages, least_pages)

    # ── who may run ─────────────────────────────────────────────────────────────────────────────────────────

    def admit(self) -> Admission:
        """Let sequences in while there is room: rows, pages, and tokens of the next pass. Ask again after
        what is to be ``read`` was (``has_read``), until there is nothing to read.
        """
        admitted: list[int] = []
        while (sequence := self._next()) is not None and self._has_room(sequence):
            missing = self._missing(sequence)
            if missing is not None:
                return Admission(tuple(admitted), missing, sequence.number)
            self._measure(sequence)
            if not self._joins(sequence):
                break
            self._let_in(sequence)
            admitted.append(sequence.number)
        return Admission(tuple(admitted))

    def has_read(
        self, reader: int, beginning: Beginning, *, held: bool = True, computed_tokens: int = 0
    ) -> None:
        """What ``admit`` asked for is in memory; ``computed_tokens`` of it were no load from elsewhere. Not
        ``held``: ``reader`` had better read that document in one go with the rest.
        """
        self._read_for_next += computed_tokens
        sequence = self._waiting[reader]
        if beginning == sequence.prefix:
            self.cached.use_prefix(beginning)
        elif held:
            self.cached.hold_document(beginning)
        else:
            sequence.apart = False

    def resume(self, number: int, tokens: int) -> None:
        """``tokens`` of its text are known from an earlier process: they are read, not decoded."""
        self._running.read(number, -tokens)

    def _next(self) -> Sequence | None:
        """The longest that waits; the oldest, once it has been overtaken too often."""
        if self._overtaken >= self._patience and self._waiting:
            return next(iter(self._waiting.values()))
        while self._turns:
            turn, arrival = self._turns[0]
            sequence = self._waiting.get(turn[-1])
            if sequence is not None and sequence.arrival == arrival:
                return sequence
            heapq.heappop(self._turns)
        return None

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether it may come in now. Where nothing runs it always may: documents make way for it."""
        budget = self.budget
        if self._tokens_left <= 0 or len(self._running) >= budget.rows:
            return False
        if sequence.decodes and self._running.decoding >= max(1, budget.decoding_rows):
            return False
        needed = self._needed_pages(sequence)
        if self._running:
            return self.pages + needed <= budget.pages
        held = sequence.document if self._document_held(sequence) else None
        self.cached.make_room(budget.pages - needed, held)
        return True

    def _joins(self, sequence: Sequence) -> bool:
        """Whether the next pass has tokens left for it. The first newcomer, and one that fits into no pass,
        is read in stretches.
        """
        size = sequence.unread + sequence.riding
        return not self._running or not self._newcomers or not self._tokens_left < size <= self.budget.tokens

    def _let_in(self, sequence: Sequence) -> None:
        oldest = next(iter(self._waiting))
        self._overtaken = 0 if sequence.number == oldest else self._overtaken + 1
        del self._waiting[sequence.number]
        self._running.add(sequence)
        if sequence.prefix is not None and self.cached.has_prefix(sequence.prefix):
            self.cached.use_prefix(sequence.prefix)
        self._newcomers += 1
        self._computed_tokens, self._read_for_next = self._computed_tokens + self._read_for_next, 0

    # ── what a sequence needs ───────────────────────────────────────────────────────────────────────────────

    def _missing(self, sequence: Sequence) -> Beginning | None:
        """What is worth a pass of its own before ``sequence`` is read, and not there."""
        document, prefix = sequence.document, sequence.prefix
        if self._document_held(sequence):
            return None
        if prefix is not None and not self.cached.has_prefix(prefix) and self.cached.users(prefix) > 1:
            return prefix
        if document is None or not self._apart(sequence) or self.cached.revive(document):
            return None
        return document

    def _document_held(self, sequence: Sequence) -> bool:
        return sequence.document is not None and self.cached.has_document(sequence.document)

    def _apart(self, sequence: Sequence) -> bool:
        """Whether its document is looked for, or read before its question: others want it, too."""
        document = sequence.document
        if document is None or not sequence.apart:
            return False
        return sequence.stored or self.cached.users(document) > 1 or self.cached.is_recent(document)

    def _needed_pages(self, sequence: Sequence) -> int:
        """Its own pages, and its document's where that would be read for it."""
        if self._document_held(sequence) or not self._apart(sequence):
            return self._own_pages(sequence, tokens_of(self.longest_held(sequence)))
        assert sequence.document is not None
        return sequence.document.pages + self._own_pages(sequence, sequence.document.tokens)

    def _measure(self, sequence: Sequence) -> None:
        """All its beginnings are there, or will not be: what is left to read, and where it is kept."""
        sequence.seen = self.longest_held(sequence)
        sequence.unread = sequence.prompt_tokens - tokens_of(sequence.seen)
        sequence.riding = 0 if self._searches(sequence) else sequence.tree_tokens
        sequence.pages = self._own_pages(sequence, tokens_of(sequence.seen))

    def longest_held(self, sequence: Sequence) -> Beginning | None:
        """The longest of its beginnings that is in memory."""
        if self._document_held(sequence):
            return sequence.document
        prefix = sequence.prefix
        return prefix if prefix is not None and self.cached.has_prefix(prefix) else None

    def _own_pages(self, sequence: Sequence, cached: int) -> int:
        """Rows that decode keep what they read, a copy of their document, too (they decode faster when all
        they see lies together); prompts that are scored in one pass keep nothing.
        """
        own = sequence.prompt_tokens - cached
        if sequence.decodes:
            copied = cached if self._document_held(sequence) or self._apart(sequence) else 0
            return self._pages_for(copied + own + sequence.new_tokens)
        return self._pages_for(own) if self._searches(sequence) or own > self.budget.tokens else 0

    def _searches(self, sequence: Sequence) -> bool:
        return sequence.tree_tokens > RIDING_NODES and sequence.tree in self.searched

    # ── one pass ────────────────────────────────────────────────────────────────────────────────────────────

    def schedule(self) -> Pass:
        """The next pass: all that have read their prompts, and as much of the other prompts as it may read,
        in the order in which they were admitted.
        """
        self._begin_round()
        left = self.budget.tokens
        prefill: dict[int, int] = {}
        decode: list[int] = []
        for sequence in self._running:
            if not sequence.unread:
                decode.append(sequence.number)
            elif left > 0 and (tokens := self._stretch(sequence, left, first=not prefill)):
                prefill[sequence.number] = tokens
                left -= tokens + (sequence.riding if tokens == sequence.unread else 0)
        return Pass(prefill, tuple(decode))

    def advance(self, number: int, tokens: int) -> None:
        """``tokens`` of its prompt were read."""
        self._running.read(number, tokens)

    def _begin_round(self) -> None:
        self._computed_tokens = self._read_for_next = self._newcomers = 0

    @staticmethod
    def _stretch(sequence: Sequence, left: int, *, first: bool) -> int:
        """Tokens of its prompt for a pass that has room for ``left``: all where they fit, with the nodes that
        ride with the last; what is kept nowhere cannot be cut, nor can a tree.
        """
        unread = sequence.unread
        if unread + sequence.riding <= left or (first and (unread == 1 or not sequence.pages)):
            return unread
        if not sequence.pages or unread == 1:
            return 0
        return min(left, unread - (1 if sequence.riding else 0))
