"""The source read as a run reads it, into a ledger that is thrown away: what a run would be refused for, and
what would become of the rows.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import Config
from pipeline.errors import OvernightError
from pipeline.prepare.dry_run import DocumentSampler
from pipeline.records import Document, Origin, Reject, is_blank
from pipeline.run.intake import ChosenDocuments, read_in
from pipeline.run.resource_guard import ResourceGuard
from pipeline.sources import read_source, source_files, source_remarks
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import Status
from pipeline.stores.ledger.unread import Stop
from pipeline.system.run_directory import LEDGER
from pipeline.tasks import Task

_SHOWN_IDS = 3


class _LongEnough(Exception):  # nothing went wrong
    """The time that a reading may take is over."""


@dataclass(slots=True)
class Rows:
    """Rows of one fate: how many, and where the first of them is."""

    first: Origin
    count: int = 1


class _Noticed:
    """Of the documents that pass by: the first, and those without a text to read."""

    first: Document | None = None
    blank: Rows | None = None

    def watch(self, items: Iterable[Document | Reject]) -> Iterator[Document | Reject]:
        """``items``, looked at as they pass."""
        for item in items:
            if isinstance(item, Document):
                self.first = self.first or item
                if is_blank(item.text):
                    self._count(item)
            yield item

    def _count(self, document: Document) -> None:
        if self.blank is None:
            self.blank = Rows(document.origin)
        else:
            self.blank.count += 1


@dataclass(frozen=True, slots=True)
class TrialReading:
    """``refused``: why a run would not begin. Not ``whole``: the reading was cut short, and everything holds
    for the ``sampler``'s documents. ``rejected`` rows are told apart by the reason, ``clashing`` ids stand
    for several texts.
    """

    sampler: DocumentSampler
    whole: bool
    refused: OvernightError | None
    files: int
    remarks: Sequence[str]
    status: Status
    first: Document | None
    blank: Rows | None
    rejected: Mapping[str, Rows]
    clashing: Sequence[tuple[str, int]]


def read_on_trial(config: Config, tasks: Sequence[Task], seconds: float) -> TrialReading:
    """Read for at most so many seconds. ``tasks``: those that would be asked, as far as they are known."""
    with (
        tempfile.TemporaryDirectory(prefix="overnight-") as folder,
        Ledger.open(Path(folder) / LEDGER, write=True) as ledger,
    ):
        return _read_into(ledger, config, tasks, seconds)


def _read_into(ledger: Ledger, config: Config, tasks: Sequence[Task], seconds: float) -> TrialReading:
    sampler, noticed, check = DocumentSampler(), _Noticed(), _until(config, seconds)
    fields = {name for task in tasks for name in task.job.fields}
    inventory = ledger.start_inventory(ledger.begin_run({}))
    whole, refused = True, None
    remarks: Sequence[str] = ()
    files = 0
    with closing(read_source(config.source, sorted(fields))) as items:  # type: ignore[type-var]  # a generator
        try:
            remarks, files = source_remarks(config.source), len(source_files(config.source))
            read_in(
                config.source,
                ChosenDocuments(items, None, None),
                inventory,
                watch=lambda chosen: sampler.watch(noticed.watch(chosen)),
                fields=fields,
                check=check,
                say=lambda _: None,
            )
        except _LongEnough:
            whole = False
            inventory.finish(Stop())
        except OvernightError as error:
            refused = error
    return TrialReading(
        sampler,
        whole,
        refused,
        files,
        remarks,
        ledger.status(),
        noticed.first,
        noticed.blank,
        _by_reason(ledger),
        ledger.clashing_ids(_SHOWN_IDS),
    )


def _until(config: Config, seconds: float) -> Callable[[], None]:
    """What a run looks at while it reads, and the time. Raises StoppedEarly, _LongEnough."""
    until = time.monotonic() + seconds
    guard = ResourceGuard(
        Path(config.run.directory),
        disk_floor_bytes=config.run.keep_free_disk,
        memory_floor_bytes=config.run.keep_free_memory,
    )

    def check() -> None:
        guard.check("nothing")
        if time.monotonic() > until:
            raise _LongEnough

    return check


def _by_reason(ledger: Ledger) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in ledger.rejects():
        if row["reason"] in found:
            found[row["reason"]].count += 1
        else:
            found[row["reason"]] = Rows(Origin(row["file"], row["line"], row["offset"]))
    return found
