"""Which beginnings of prompts stay in memory: policy on plain ints; the keys and values are elsewhere.

Two kinds. A shared prefix (a task's instructions) is kept while there is room for it, the least recently used
one goes first. A document is held while a question about it is waiting or running, and a while longer when
further questions of this run will want it. A beginning is named by a key: a number that stands for its
tokens.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator

from pipeline.engine.packed.sequence import Beginning, Sequence


class _Held:
    """Keys of beginnings, the one put longest ago first, and the ``pages`` of all of them."""

    def __init__(self) -> None:
        self.pages = 0
        self._by_key: OrderedDict[int, int] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def put(self, key: int, pages: int) -> None:
        """It is the one put last."""
        self.take(key)
        self._by_key[key] = pages
        self.pages += pages

    def take(self, key: int) -> int | None:
        """Its pages, None where it is not here; it is no more."""
        pages = self._by_key.pop(key, None)
        self.pages -= pages or 0
        return pages

    def take_oldest(self) -> int:
        """The key put longest ago."""
        oldest = next(iter(self._by_key))
        self.take(oldest)
        return oldest


class CachedBeginnings:
    """Shared prefixes within ``prefix_pages``, documents that wait for later questions within
    ``recent_pages``; documents in use count in ``pages``, which the scheduler's budget bounds.
    """

    def __init__(self, prefix_pages: int, recent_pages: int) -> None:
        self._prefix_pages, self._recent_pages = prefix_pages, recent_pages
        self._prefixes, self._documents, self._recent = _Held(), _Held(), _Held()
        self._users: Counter[int] = Counter()
        self._evicted: list[int] = []

    @property
    def pages(self) -> int:
        """Held by documents that waiting or running sequences ask about."""
        return self._documents.pages

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
        pages = self._recent.take(document.key)
        if pages is not None:
            self._documents.put(document.key, pages)
        return pages is not None

    def hold_document(self, document: Beginning) -> None:
        """It is in memory now."""
        self._documents.put(document.key, document.pages)

    def use_prefix(self, prefix: Beginning) -> None:
        """It is in memory and used last; the least recently used others go when they no longer fit beside
        it.
        """
        self._prefixes.put(prefix.key, prefix.pages)
        while len(self._prefixes) > 1 and self._prefixes.pages > self._prefix_pages:
            self._evicted.append(self._prefixes.take_oldest())

    # ── what goes ───────────────────────────────────────────────────────────────────────────────────────────

    def make_room(self, pages: int, document: Beginning | None) -> None:
        """Evict documents, the oldest first and ``document`` never, until they hold at most ``pages``. What
        is still wanted of them is read again.
        """
        for key in list(self._documents):
            if self.pages <= pages:
                return
            if document is None or key != document.key:
                self._documents.take(key)
                self._evicted.append(key)

    def clear(self) -> None:
        """Everything goes."""
        self._evicted += [*self._prefixes, *self._documents, *self._recent]
        self._prefixes, self._documents, self._recent = _Held(), _Held(), _Held()

    def take_evicted(self) -> list[int]:
        """What has gone since the last call and has not come back."""
        if not self._evicted:
            return []
        held = self.keys
        evicted, self._evicted = [key for key in self._evicted if key not in held], []
        return evicted

    def _let_go(self, key: int, *, awaited: bool) -> None:
        pages = self._documents.take(key)
        if pages is None:
            return
        if awaited:
            self._recent.put(key, pages)
        else:
            self._evicted.append(key)
        while self._recent.pages > self._recent_pages:
            self._evicted.append(self._recent.take_oldest())
