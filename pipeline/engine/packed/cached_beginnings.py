"""Which beginnings of prompts stay in memory: policy on plain ints; the keys and values are elsewhere.

Two kinds. A shared prefix (a task's instructions) is kept while there is room for it, the least recently used
one goes first. A document is held while a question about it is waiting or running, and a while longer when
further questions of this run will want it. A beginning is named by a key: a number that stands for its
tokens. Each is in memory once, in pages of its own; who needs them is counted, and with the last of those
the pages are given back.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator

from pipeline.engine.packed.page_allocator import PageAllocator
from pipeline.engine.packed.sequence import Beginning, HeldBeginning, Sequence, pages_of, tokens_of


class _Held:
    """Beginnings by key, the one put longest ago first, and the ``pages`` of all of them."""

    def __init__(self) -> None:
        self.pages = 0
        self._by_key: OrderedDict[int, HeldBeginning] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[HeldBeginning]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: int) -> HeldBeginning | None:
        """One of them, None where it is not here."""
        return self._by_key.get(key)

    def put(self, held: HeldBeginning) -> None:
        """It is the one put last."""
        self.take(held.key)
        self._by_key[held.key] = held
        self.pages += held.pages

    def take(self, key: int) -> HeldBeginning | None:
        """It is here no more; None where it was not."""
        held = self._by_key.pop(key, None)
        self.pages -= 0 if held is None else held.pages
        return held

    def take_oldest(self) -> HeldBeginning:
        """The one put longest ago."""
        _, held = self._by_key.popitem(last=False)
        self.pages -= held.pages
        return held


class CachedBeginnings:
    """Shared prefixes within ``prefix_pages``, documents that wait for later questions within
    ``recent_pages``, documents in use as the scheduler lets them in; all in pages of ``allocator``.
    """

    def __init__(self, allocator: PageAllocator, prefix_pages: int, recent_pages: int) -> None:
        self._allocator = allocator
        self._prefix_pages, self._recent_pages = prefix_pages, recent_pages
        self._prefixes, self._documents, self._recent = _Held(), _Held(), _Held()
        self._users: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._prefixes) + len(self._documents) + len(self._recent)

    @property
    def pages(self) -> int:
        """Held by documents that waiting or running sequences ask about."""
        return self._documents.pages

    @property
    def held(self) -> list[HeldBeginning]:
        """Everything that is kept."""
        return [*self._prefixes, *self._documents, *self._recent]

    # ── who wants what ──────────────────────────────────────────────────────────────────────────────────────

    def expect(self, sequence: Sequence) -> None:
        """``sequence`` is queued."""
        self._users.update(beginning.key for beginning in sequence.beginnings)

    def forget(self, sequence: Sequence) -> bool:
        """``sequence`` has left. True when it was the last that asked about its document, which then goes, or
        waits for the questions that are still to come.
        """
        self._users.subtract(beginning.key for beginning in sequence.beginnings)
        for beginning in sequence.beginnings:
            if self._users[beginning.key] <= 0:
                del self._users[beginning.key]
        document = sequence.document
        if document is None or document.key in self._users:
            return False
        self._let_go(document.key, awaited=sequence.awaited)
        return True

    def users(self, beginning: Beginning) -> int:
        """Sequences, waiting or running, whose prompts begin with it."""
        return self._users[beginning.key]

    # ── pages ───────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, beginning: Beginning, base: HeldBeginning | None, *, urgent: bool) -> HeldBeginning:
        """Pages for what ``beginning`` has beyond ``base``. There must be room (``PageAllocator.fits``)."""
        run = self._allocator.take(pages_of(beginning.tokens - tokens_of(base)), urgent=urgent)
        assert run is not None, "a beginning is read although there is no room for it"
        if base is not None:
            self.retain(base)
        return HeldBeginning(beginning.key, beginning.tokens, run, base)

    @staticmethod
    def retain(held: HeldBeginning) -> None:
        """One more needs its pages."""
        held.users += 1

    def release(self, held: HeldBeginning) -> None:
        """One less; with the last its pages are given back."""
        held.users -= 1
        if not held.users:
            self._allocator.give_back(held.run)
            if held.base is not None:
                self.release(held.base)

    # ── what is held ────────────────────────────────────────────────────────────────────────────────────────

    def prefix(self, prefix: Beginning | None) -> HeldBeginning | None:
        """It, where it can be seen at once."""
        return None if prefix is None else self._prefixes.get(prefix.key)

    def document(self, document: Beginning | None, *, recent: bool = False) -> HeldBeginning | None:
        """It, where it is among those that count in ``pages``, or, if ``recent``, waits for a further
        question.
        """
        if document is None:
            return None
        return self._documents.get(document.key) or (self._recent.get(document.key) if recent else None)

    def find(self, beginning: Beginning) -> HeldBeginning | None:
        """It, of whatever kind."""
        return self.prefix(beginning) or self.document(beginning, recent=True)

    def is_recent(self, document: Beginning) -> bool:
        """Whether it waits in memory for a further question."""
        return document.key in self._recent

    def revive(self, document: Beginning) -> bool:
        """Whether it was waiting for a further question; it then counts in ``pages`` again."""
        held = self._recent.take(document.key)
        if held is not None:
            self._documents.put(held)
        return held is not None

    def hold_document(self, held: HeldBeginning) -> None:
        """It is in memory now."""
        self._documents.put(held)

    def use_prefix(self, held: HeldBeginning) -> None:
        """It is in memory and used last; the least recently used others go when they no longer fit beside
        it.
        """
        self._prefixes.put(held)
        while len(self._prefixes) > 1 and self._prefixes.pages > self._prefix_pages:
            self.release(self._prefixes.take_oldest())

    # ── what goes ───────────────────────────────────────────────────────────────────────────────────────────

    def make_room(self, enough: Callable[[], bool], spared: Collection[int], *, alone: bool) -> None:
        """Let beginnings go until there is ``enough`` room, never those whose keys are ``spared``: prefixes
        that nobody here wants; where nothing runs (``alone``) also documents that wait for later questions,
        then what is wanted, which is read again.
        """
        unwanted = [held.key for held in self._prefixes if held.key not in self._users]
        kinds = [(self._prefixes, unwanted)]
        if alone:
            kinds += [
                (kind, [held.key for held in kind])
                for kind in (self._recent, self._documents, self._prefixes)
            ]
        for kind, keys in kinds:
            for key in keys:
                if enough():
                    return
                if key not in spared and (held := kind.take(key)) is not None:
                    self.release(held)

    def _let_go(self, key: int, *, awaited: bool) -> None:
        held = self._documents.take(key)
        if held is None:
            return
        if awaited:
            self._recent.put(held)
        else:
            self.release(held)
        while self._recent.pages > self._recent_pages:
            self.release(self._recent.take_oldest())
