"""Who reads, who decodes, who waits: the policy of packed passes, on plain ints. No tensors, no clock.

The engine adds sequences, then for each pass lets it ``admit`` some of those that wait, asks what to
``schedule``, carries that out, and says how far each has got (``advance``) or that it has left (``forget``).
KV memory is one pool of pages of ``PAGE_TOKENS`` tokens, given out here (``PageAllocator``); where the
numbers of a page lie is the pool's business.

A sequence gets the pages of its whole life when it is admitted, so none that runs ever has to make way for
another: what is evicted are beginnings of prompts (``CachedBeginnings``), which are read again if need be.
Only when memory runs out all the same does everything that runs leave at once (``give_up``).
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable

from pipeline.engine.backoff import halved
from pipeline.engine.packed.cached_beginnings import CachedBeginnings
from pipeline.engine.packed.page_allocator import Move, PageAllocator
from pipeline.engine.packed.running import RunningSequences
from pipeline.engine.packed.sequence import (
    Admission,
    Beginning,
    Budget,
    HeldBeginning,
    Pass,
    Sequence,
    pages_of,
    tokens_of,
)

RIDING_NODES = 12
"""Label trees up to so many nodes ride along with the prompt: cheaper than keeping it and coming back."""
_PATIENCE = 1024
_PREFIX_SHARE = 4
_RECENT_SHARE = 8


class Scheduler:
    """See the module. ``patience`` is after how many later arrivals the oldest that waits goes first."""

    def __init__(self, budget: Budget, *, patience: int = _PATIENCE) -> None:
        self.budget = budget
        self.searched: set[int] = set()
        """Numbers of label trees that are searched in rounds, where they are too large to ride."""
        self._patience = patience
        self._waiting: dict[int, Sequence] = {}  # in the order of their arrival
        self._turns: list[tuple[tuple[int, int, int], int]] = []
        self._running = RunningSequences()
        self._arrivals = 0
        self._overtaken = 0
        self._computed_tokens = self._read_for_next = 0
        self._newcomers = 0
        self._reading: HeldBeginning | None
        self._share_out()

    def _share_out(self) -> None:
        """An empty pool of as many pages as the budget has."""
        pages = self.budget.pages
        self._pool = PageAllocator(pages)
        self.cached = CachedBeginnings(self._pool, pages // _PREFIX_SHARE, pages // _RECENT_SHARE)
        self._reading = None
        for sequence in (*self._running, *self._waiting.values()):
            sequence.run = sequence.seen = None
            self.cached.expect(sequence)

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
    def pool(self) -> PageAllocator:
        """All pages there are; prefixes that are kept have some of them, too."""
        return self._pool

    def takes(self, sequence: Sequence) -> bool:
        """Whether the pool is large enough for it, alone."""
        return pages_of(sequence.kept_tokens) <= self.budget.pages

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
        sequence = self._running.remove(number)
        if sequence is None:
            sequence = self._waiting.pop(number)
        else:
            self._give_back(sequence)
        return self.cached.forget(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        if sequence.run is not None:
            self._pool.give_back(sequence.run)
        if sequence.seen is not None:
            self.cached.release(sequence.seen)
        sequence.run, sequence.seen, sequence.pages = None, None, 0

    def start_over(self) -> None:
        """Nothing is in the model, and what is in the pool is lost: the beginnings that are kept, too."""
        assert not self._running, "pages of a pool that is given up are still in use"
        self._share_out()

    def give_up(self) -> tuple[int, ...]:
        """A pass failed: what must be forgotten, so that the rest can go on. Everything in the model, or,
        where that is empty, the one whose turn it was. All pages are free, whatever state it left them in.
        """
        self._share_out()
        self._begin_round()
        if self._running:
            return self.running
        first = self._next()
        return () if first is None else (first.number,)

    def shrink(self, rows: int, least_pages: int) -> None:
        """Memory ran out with ``rows`` in the model, which are forgotten: half of them, and half the pages,
        are the budget now, though never less than ``least_pages`` or what the longest that waits needs. The
        pool is a new, empty one.
        """
        assert not self._pool.used, "pages of a pool that is given up are still in use"
        budget, waiting = self.budget, self._waiting.values()
        budget.rows = halved(budget.rows, rows)
        least = max([least_pages, *(pages_of(sequence.kept_tokens) for sequence in waiting)])
        budget.pages = min(budget.pages, halved(budget.pages, budget.pages, least))
        self._share_out()

    def take_moves(self) -> list[Move]:
        """What ``admit`` has moved in the pool; to be done before anything is read or written there."""
        return self._pool.take_moves()

    # ── who may run ─────────────────────────────────────────────────────────────────────────────────────────

    def admit(self) -> Admission:
        """Let sequences in while there is room: rows, pages, and tokens of the next pass. Ask again after
        what is to be ``read`` was (``has_read``), until there is nothing to read. What it moved comes first
        (``take_moves``).
        """
        admitted: list[int] = []
        while (sequence := self._next()) is not None and self._has_room(sequence):
            missing = self._missing(sequence)
            if missing is not None:
                self._reading = self.cached.begin(
                    missing, self._base_of(missing, sequence), urgent=not self._running
                )
                return Admission(tuple(admitted), self._reading, sequence.number)
            self._measure(sequence)
            if not self._joins(sequence):
                break
            self._let_in(sequence)
            admitted.append(sequence.number)
        return Admission(tuple(admitted))

    def has_read(self, reader: int, *, held: bool = True, computed_tokens: int = 0) -> None:
        """What ``admit`` asked for is in memory; ``computed_tokens`` of it were no load from elsewhere. Not
        ``held``: ``reader`` had better read that document in one go with the rest.
        """
        self._read_for_next += computed_tokens
        reading, self._reading = self._reading, None
        assert reading is not None
        sequence = self._waiting[reader]
        if not held:
            sequence.apart = False
            self.cached.release(reading)
        elif sequence.prefix is not None and reading.key == sequence.prefix.key:
            self.cached.use_prefix(reading)
        else:
            self.cached.hold_document(reading)

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
        """Whether it may come in now. Where nothing runs it always may: beginnings make way for it."""
        budget = self.budget
        if self._tokens_left <= 0 or len(self._running) >= budget.rows:
            return False
        if sequence.decodes and self._running.decoding >= max(1, budget.decoding_rows):
            return False
        needed, alone = self._needed_pages(sequence), not self._running

        def enough() -> bool:
            return self._pool.fits(needed, urgent=alone)

        if enough():
            return True
        self.cached.make_room(enough, {beginning.key for beginning in self._chain(sequence)}, alone=alone)
        return enough()

    def _joins(self, sequence: Sequence) -> bool:
        """Whether the next pass has tokens, and logits, left for it. The first newcomer, and one that fits
        into no pass, is read in stretches.
        """
        if not self._running or not self._newcomers:
            return True
        if self._running.logits + sequence.logits > self._most_logits:
            return False
        size = sequence.unread + sequence.riding
        return not self._tokens_left < size <= self.budget.tokens

    def _let_in(self, sequence: Sequence) -> None:
        if sequence.pages:
            sequence.run = self._pool.take(sequence.pages, urgent=not self._running)
            assert sequence.run is not None, "a sequence is let in although there is no room for it"
        if sequence.seen is not None:
            self.cached.retain(sequence.seen)
        oldest = next(iter(self._waiting))
        self._overtaken = 0 if sequence.number == oldest else self._overtaken + 1
        del self._waiting[sequence.number]
        self._running.add(sequence)
        if (prefix := self.cached.prefix(sequence.prefix)) is not None:
            self.cached.use_prefix(prefix)
        self._newcomers += 1
        self._computed_tokens, self._read_for_next = self._computed_tokens + self._read_for_next, 0

    # ── what a sequence needs ───────────────────────────────────────────────────────────────────────────────

    def _missing(self, sequence: Sequence) -> Beginning | None:
        """What is worth a pass of its own before ``sequence`` is read, and not there."""
        for beginning in self._chain(sequence):
            if self.cached.find(beginning) is None:
                return beginning
            if beginning == sequence.document:
                self.cached.revive(beginning)
        return None

    def _chain(self, sequence: Sequence) -> list[Beginning]:
        """The beginnings that it is to see, those with the first tokens first: such as others want, too, and
        such as the pool can hold beside it.
        """
        document, prefix = sequence.document, sequence.prefix
        apart = self._apart(sequence)
        held = self.cached.document(document, recent=apart)
        if document is not None and held is not None and self._fits_beside(sequence, held.chain):
            return [document]
        chain = []
        if prefix is not None and (self.cached.prefix(prefix) or self.cached.users(prefix) > 1):
            chain.append(prefix)
        if document is not None and held is None and apart:
            chain.append(document)
        while chain and not self._fits_beside(sequence, chain):
            chain.pop()
        return chain

    def _fits_beside(self, sequence: Sequence, chain: Iterable[Beginning | HeldBeginning]) -> bool:
        begun = pages = 0
        for beginning in chain:
            pages += pages_of(beginning.tokens - begun)
            begun = beginning.tokens
        return pages + self._own_pages(sequence, begun) <= self.budget.pages

    def _apart(self, sequence: Sequence) -> bool:
        """Whether its document is looked for, or read before its question: others want it, too."""
        document = sequence.document
        if document is None or not sequence.apart:
            return False
        return sequence.stored or self.cached.users(document) > 1 or self.cached.is_recent(document)

    def _base_of(self, missing: Beginning, sequence: Sequence) -> HeldBeginning | None:
        """What is in memory of a document that is to be read for ``sequence``: its prefix."""
        return None if missing == sequence.prefix else self.cached.prefix(sequence.prefix)

    def _needed_pages(self, sequence: Sequence) -> int:
        """Its own pages, and those of beginnings that would be read for it."""
        begun = pages = 0
        for beginning in self._chain(sequence):
            if self.cached.find(beginning) is None:
                pages += pages_of(beginning.tokens - begun)
            begun = beginning.tokens
        return pages + self._own_pages(sequence, begun)

    def _measure(self, sequence: Sequence) -> None:
        """All its beginnings are there, or will not be: what is left to read, and where it is kept."""
        chain = self._chain(sequence)
        sequence.seen = self.cached.find(chain[-1]) if chain else None
        sequence.unread = sequence.prompt_tokens - tokens_of(sequence.seen)
        sequence.riding = 0 if self._searches(sequence) else sequence.tree_tokens
        sequence.pages = self._own_pages(sequence, tokens_of(sequence.seen))

    def _own_pages(self, sequence: Sequence, seen_tokens: int) -> int:
        """Rows that decode keep what they read; prompts that are scored in one pass keep nothing."""
        own = sequence.prompt_tokens - seen_tokens
        if sequence.decodes:
            return pages_of(own + sequence.new_tokens)
        return pages_of(own) if self._searches(sequence) or own > self.budget.tokens else 0

    def _searches(self, sequence: Sequence) -> bool:
        return sequence.tree_tokens > RIDING_NODES and sequence.tree in self.searched

    # ── one pass ────────────────────────────────────────────────────────────────────────────────────────────

    def schedule(self) -> Pass:
        """The next pass: those that have read their prompts, and as much of the other prompts as it may read,
        in the order in which they were admitted.
        """
        self._begin_round()
        decode, left, answers = self._going_on()
        prefill: dict[int, int] = {}
        for sequence in self._running:
            if not sequence.unread or left <= 0:
                continue
            answered = sequence.logits <= answers
            tokens = self._stretch(sequence, left, answered=answered, first=not prefill)
            if not tokens:
                continue
            prefill[sequence.number] = tokens
            left -= tokens
            if tokens == sequence.unread:
                left, answers = left - sequence.riding, answers - sequence.logits
        return Pass(prefill, decode)

    def _going_on(self) -> tuple[tuple[int, ...], int, int]:
        """Who goes on with an answer: all texts, and searches, of which at least one; and how many tokens and
        logits that leaves of a pass.
        """
        texts = [sequence.number for sequence in self._running if not (sequence.unread or sequence.asked)]
        left, answers = self.budget.tokens, self._most_logits - len(texts)
        searches: list[int] = []
        for sequence in self._running:
            nodes = sequence.asked
            if nodes and (not searches or nodes <= min(left, answers)):
                searches.append(sequence.number)
                left, answers = left - nodes, answers - nodes
        return (*texts, *searches), left, answers

    @property
    def _most_logits(self) -> int:
        """Of one pass."""
        return sys.maxsize if self.budget.logits is None else self.budget.logits

    def advance(self, number: int, tokens: int) -> None:
        """``tokens`` of its prompt were read."""
        self._running.read(number, tokens)

    def search(self, number: int, nodes: int) -> None:
        """The search of its label tree is to feed ``nodes`` to the next pass, its prompt being read."""
        self._running.search(number, nodes)

    def _begin_round(self) -> None:
        self._computed_tokens = self._read_for_next = self._newcomers = 0

    @staticmethod
    def _stretch(sequence: Sequence, left: int, *, answered: bool, first: bool) -> int:
        """Tokens of its prompt for a pass that has room for ``left``: all where they fit, with the nodes that
        ride with the last, and may be ``answered``; what is kept nowhere cannot be cut, nor can a tree.
        """
        unread = sequence.unread
        whole = answered and unread + sequence.riding <= left
        if whole or (first and (unread == 1 or not sequence.pages)):
            return unread
        if not sequence.pages or unread == 1:
            return 0
        return min(left, unread - (1 if sequence.riding or not answered else 0))
