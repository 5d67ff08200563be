"""The first reading of the source: every row is entered in the ledger before the model is asked anything.

So the counts, the rejects and the repeats are known from the start, and what would spoil the whole night is
said at its beginning: too many rejects, no document at all, a field that a template names and no row has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from pipeline.errors import SourceError
from pipeline.records import Document, Reject
from pipeline.stores.ledger.inventory import Inventory

_Item = TypeVar("_Item")
BLOCK_DOCUMENTS = 256


@dataclass(slots=True)
class Intake:
    """What was read. ``damaged`` counts files that could not be read to their end."""

    documents: int = 0
    rejected: int = 0
    damaged: int = 0
    fields: set[str] = field(default_factory=set)
    first: Reject | None = None
    last: Reject | None = None

    def take(self, block: Iterable[Document | Reject]) -> tuple[list[Document], list[Reject]]:
        """Count a block; returns its documents and its rejects."""
        documents: list[Document] = []
        rejects: list[Reject] = []
        for item in block:
            if isinstance(item, Document):
                documents.append(item)
                self.fields.update(item.fields)
            else:
                rejects.append(item)
                self.damaged += item.ends_file
        self.documents += len(documents)
        self.rejected += len(rejects)
        self.first = self.first or next(iter(rejects), None)
        self.last = rejects[-1] if rejects else self.last
        return documents, rejects


def read_in(
    items: Iterable[Document | Reject],
    inventory: Inventory,
    *,
    whole: bool,
    max_rejects: int,
    fields: Collection[str],
    check: Callable[[], None],
    say: Callable[[str], None],
) -> Intake:
    """Enter ``items`` in the inventory. ``whole``: they are the whole source; ``fields``: what templates
    name; ``check`` may raise to stop.

    Raises SourceError.
    """
    seen = Intake()
    for block in blocks(items, BLOCK_DOCUMENTS):
        check()
        documents, rejects = seen.take(block)
        inventory.see(documents)
        inventory.reject(rejects)
        if seen.rejected > max_rejects:
            raise SourceError(
                f"{seen.rejected:,} rows were rejected, more than source.max_rejects = {max_rejects:,}; "
                f"the last: {_told(seen.last)}. "
                "All are in rejects.jsonl in the run directory"
            )
        say(f"{seen.documents:,} documents read, {seen.rejected:,} rows rejected")
    inventory.finish(complete=whole and not seen.damaged)
    if not seen.documents and seen.rejected:
        raise SourceError(
            f"none of the {seen.rejected:,} rows is a document; the first: {_told(seen.first)}. All are "
            f"in rejects.jsonl"
        )
    missing = sorted(set(fields) - seen.fields)
    if seen.documents and missing:
        raise SourceError(
            f"the instructions name the field {missing[0]!r}, and none of the {seen.documents:,} "
            f"documents has it"
        )
    return seen


def _told(reject: Reject | None) -> str:
    return "" if reject is None else f"{reject.origin.file}, line {reject.origin.line}: {reject.reason}"


def chosen_documents(
    items: Iterable[Document | Reject], limit: int | None, only: str | None
) -> Iterator[Document | Reject]:
    """``items`` up to and without the one after ``limit`` documents; of an id ``only`` the documents that
    have it and nothing else.
    """
    documents = 0
    for item in items:
        if only is not None and not (isinstance(item, Document) and item.id == only):
            continue
        if documents == limit:
            return
        documents += isinstance(item, Document)
        yield item


def blocks(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """``items`` in lists of ``size``, the last one shorter."""
    iterator = iter(items)
    while block := list(itertools.islice(iterator, size)):
        yield block
