"""Which beginnings of prompts stay in memory: policy on plain ints; the keys and values are elsewhere.

Two kinds. A shared prefix (a task's instructions) is kept while there is room for it, the least recently used
one goes first. A document is held while a question about it is waiting or running, and a while longer when
further questions of this run will want it. A beginning is named by a key: a number that stands for its
tokens.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from pipeline.engine.packed.sequence import Beginning, Sequence


class CachedBeginnings:
    """Shared prefixes within ``prefix_pages``, documents that wait for later questions within
    ``recent_pages``; documents in use count in ``pages``, which the scheduler's budget bounds.
    """

    def __init__(self, prefix_pages: int, recent_pages: int) -> None:
        self._prefix_pages, self._recent_pages = prefix_pages, recent_pages
        self._prefixes: OrderedDict[int, int] = OrderedDict()
        self._documents: dict[int, int] = {}
        self._recent: OrderedDict[int, int] = OrderedDict()
        self._users: Counter[int] = Counter()
        self._evicted: list[int] = []

    @property
    def pages(self) -> int:
        """Held by documents that waiting or running sequences ask about."""
        return sum(self._documents.values())

    @property
    def keys(self) -> set[int]:
        """Everything that is in memory."""
        return {*self._prefixes, *self._documents, *self._recent}

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

    # ── what is held ────────────────────────────────────────────────────────────────────────────────────────

    def has_prefix(self, prefix: Beginning) -> bool:
        """Whether it can be seen at once."""
        return prefix.key in self._prefixes

    def has_document(self, document: Beginning) -> bool:
        """Whether it is among those that count in ``pages``."""
        return document.key in self._documents

    def is_recent(self, document: Beginning) -> bool:
        """Whether it waits in memory for a further question."""
        return document.key in self._recent

    def revive(self, document: Beginning) -> bool:
        """Whether it was waiting for a further question; it then counts in ``pages`` again."""
        pages = self._recent.pop(document.key, None)
        if pages is not None:
            self._documents[document.key] = pages
        return pages is not None

    def hold_document(self, document: Beginning) -> None:
        """It is in memory now."""
        self._documents[document.key] = document.pages

    def use_prefix(self, prefix: Beginning) -> None:
        """It is in memory and used last; the least recently used others go when they no longer fit beside
        it.
        """
        self._prefixes[prefix.key] = prefix.pages
        self._prefixes.move_to_end(prefix.key)
        while len(self._prefixes) > 1 and sum(self._prefixes.values()) > self._prefix_pages:
            self._evicted.append(self._prefixes.popitem(last=False)[0])

    # ── what goes ───────────────────────────────────────────────────────────────────────────────────────────

    def make_room(self, pages: int, document: Beginning | None) -> None:
        """Evict documents, the oldest first and ``document`` never, until they hold at most ``pages``. What
        is still wanted of them is read again.
        """
        for key in list(self._documents):
            if self.pages <= pages:
                return
            if document is None or key != document.key:
                del self._documents[key]
                self._evicted.append(key)

    def clear(self) -> None:
        """Everything goes."""
        self._evicted += [*self._prefixes, *self._documents, *self._recent]
        for held in (self._prefixes, self._documents, self._recent):
            held.clear()

    def take_evicted(self) -> list[int]:
        """What has gone since the last call and has not come back."""
        held = self.keys
        evicted, self._evicted = [key for key in self._evicted if key not in held], []
        return evicted

    def _let_go(self, key: int, *, awaited: bool) -> None:
        pages = self._documents.pop(key, None)
        if pages is None:
            return
        if awaited:
            self._recent[key] = pages
        else:
            self._evicted.append(key)
        while sum(self._recent.values()) > self._recent_pages:
            self._evicted.append(self._recent.popitem(last=False)[0])
