"""The first reading of the source: every row is entered in the ledger before the model is asked anything.

So the counts, the rejects and the repeats are known from the start, and what would spoil the whole night is
said at its beginning: too many rejects, nothing to read, a field that a template names and no row has. A
reading that is refused does not count: what was known before stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeVar

from pipeline.config import SourceConfig
from pipeline.errors import SourceError
from pipeline.records import Document, Reject, is_blank
from pipeline.sources import names_in_order
from pipeline.stores.ledger.inventory import Inventory
from pipeline.stores.ledger.unread import Stop

_Item = TypeVar("_Item")
BLOCK_DOCUMENTS = 256
_LISTED = "A run lists them all in rejects.jsonl in its directory"


class Contents:
    """What a reading has given, whatever its order: two readings that gave the same are equal."""

    def __init__(self) -> None:
        self._count = self._sum = 0

    def watch(self, items: Iterable[Document | Reject]) -> Iterator[Document | Reject]:
        """``items``, counted as they pass."""
        for item in items:
            self._add(item)
            yield item

    def _add(self, item: Document | Reject) -> None:
        if isinstance(item, Document):
            told = hash((item.key, repr(sorted(item.fields.items())) if item.fields else ""))
        else:
            told = hash((item.origin, item.reason))
        self._count += 1
        self._sum = (self._sum + told) % 2**64

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and (self._count, self._sum) == (other._count, other._sum)

    __hash__ = None  # type: ignore[assignment]  # it grows


class ChosenDocuments:
    """``items`` up to and without the one after ``limit`` documents; of an id ``only`` the documents that
    have it and nothing else. ``left_out`` is the document that came after the limit.
    """

    def __init__(self, items: Iterator[Document | Reject], limit: int | None, only: str | None) -> None:
        self.left_out: Document | None = None
        self._items = items
        self._limit = limit
        self._only = only

    def __iter__(self) -> Iterator[Document | Reject]:
        documents = 0
        with closing(self._items) as items:  # type: ignore[type-var]  # a generator
            for item in items:
                if self._only is not None and not (isinstance(item, Document) and item.id == self._only):
                    continue
                if isinstance(item, Document) and documents == self._limit:
                    self.left_out = item
                    return
                documents += isinstance(item, Document)
                yield item

    def stop(self, files: Callable[[], Sequence[str]]) -> Stop | None:
        """Where the reading stopped; None where it went on to the end. ``files`` gives the names of all files
        in their order.
        """
        if self._only is not None:
            return Stop()
        if self.left_out is None:
            return None
        names = files()
        here = self.left_out.origin.file
        return Stop(self.left_out, names[names.index(here) + 1 :] if here in names else ())


@dataclass(slots=True)
class _Seen:
    """What was read. ``readable`` documents have a text to read."""

    documents: int = 0
    readable: int = 0
    rejected: int = 0
    fields: set[str] = field(default_factory=set)
    first: Reject | None = None
    last: Reject | None = None

    def take(self, block: Iterable[Document | Reject]) -> None:
        """Count a block."""
        for item in block:
            if isinstance(item, Document):
                self.documents += 1
                self.readable += not is_blank(item.text)
                self.fields.update(item.fields)
                continue
            self.rejected += 1
            self.first = self.first or item
            self.last = item


def read_in(
    config: SourceConfig,
    chosen: ChosenDocuments,
    inventory: Inventory,
    *,
    watch: Callable[[Iterable[Document | Reject]], Iterable[Document | Reject]],
    fields: Collection[str],
    check: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """Enter what is ``chosen`` of a source in the inventory, and ``watch`` it pass by. ``fields``: what
    templates name; ``check`` may raise to end the reading.

    Raises SourceError; then the reading does not count.
    """
    seen = _Seen()
    for block in blocks(watch(chosen), BLOCK_DOCUMENTS):
        check()
        seen.take(block)
        inventory.enter(block)
        if seen.rejected > config.max_rejects:
            raise SourceError(
                f"{seen.rejected:,} rows were rejected, more than source.max_rejects = "
                f"{config.max_rejects:,}; the last: {_told(seen.last)}. {_LISTED}"
            )
        say(f"{seen.documents:,} documents read, {seen.rejected:,} rows rejected")
    _refuse_nothing(seen, ", ".join(config.paths))
    missing = sorted(set(fields) - seen.fields)
    if missing:
        raise SourceError(
            f"the instructions name the field {missing[0]!r}, and none of the {seen.documents:,} "
            f"documents has it"
        )
    inventory.finish(chosen.stop(lambda: names_in_order(config)))


def _refuse_nothing(seen: _Seen, source: str) -> None:
    """Raise SourceError where nothing was read that a model could be asked about."""
    if seen.readable:
        return
    first = f"; the first: {_told(seen.first)}. {_LISTED}"
    if seen.documents:
        rejected = f", and {seen.rejected:,} rows were rejected{first}" if seen.rejected else ""
        raise SourceError(
            f"nothing was read from {source}: none of its {seen.documents:,} documents has a text that is "
            f"not blank{rejected}; look at source.text_field"
        )
    if seen.rejected:
        raise SourceError(f"none of the {seen.rejected:,} rows is a document{first}")
    raise SourceError(
        f"nothing was read from {source}: it holds no document; look at the files, and at source.path"
    )


def _told(reject: Reject | None) -> str:
    return "" if reject is None else f"{reject.origin.file}, line {reject.origin.line}: {reject.reason}"


def blocks(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """``items`` in lists of ``size``, the last one shorter."""
    iterator = iter(items)
    while block := list(itertools.islice(iterator, size)):
        yield block
