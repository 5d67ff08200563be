"""The documents of a run, read again from its source: the ledger keeps no texts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing

from pipeline.config import Config, parse_config
from pipeline.errors import UsageError
from pipeline.records import Document
from pipeline.sources import read_source
from pipeline.stores.ledger.ledger import Ledger


def last_config(ledger: Ledger) -> Config:
    """The configuration of the latest run. Raises UsageError where there is none."""
    runs = ledger.runs()
    if not runs or "config" not in runs[-1]["facts"]:
        raise UsageError(
            "the run directory does not say which configuration it was made with, so its texts cannot be "
            "read again"
        )
    return parse_config(runs[-1]["facts"]["config"])


def documents_again(config: Config, keys: Collection[str]) -> Iterator[Document]:
    """Documents of the source with one of ``keys``, each once, in reading order; those that are gone are
    missing. Raises SourceError.
    """
    wanted = set(keys)
    with closing(iter(read_source(config.source))) as rows:  # type: ignore[type-var]
        for row in rows if wanted else ():
            if isinstance(row, Document) and row.key in wanted:
                wanted.discard(row.key)
                yield row
                if not wanted:
                    return
