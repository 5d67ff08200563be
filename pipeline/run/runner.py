"""The night, from top to bottom: read the inputs, ask the model about each document, record every answer,
report.

The story of a document: it is read and entered in the ledger; its attempt is marked; its task asks
questions, which workers answer in batches; what the task makes of them is recorded, and only then counts.
Whatever ends this process, the same command goes on from what is recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pipeline.config import Config
from pipeline.errors import (
    EXIT_DONE,
    EXIT_SOME_FAILED,
    EXIT_STOPPED,
    OvernightError,
    SourceError,
    StoppedEarly,
)
from pipeline.prepare.dry_run import DocumentSampler, longest_row
from pipeline.prepare.predict import predict, rests_on, sizes_by_task
from pipeline.prepare.prepare import Preparation
from pipeline.records import Document, Progress
from pipeline.results.export.layout import Output
from pipeline.results.outputs import Written, all_outputs
from pipeline.run.admission import Admission
from pipeline.run.closing import Closing, Ending
from pipeline.run.entered import Entered
from pipeline.run.in_doubt import InDoubt
from pipeline.run.intake import BLOCK_DOCUMENTS, ChosenDocuments, Contents, blocks, read_in
from pipeline.run.progress import Noted, Observer, WorkProgress, tell
from pipeline.run.resource_guard import ResourceGuard
from pipeline.run.runner_watchdog import RunnerWatchdog
from pipeline.run.session import RunSession, begin_session
from pipeline.run.work_loop import WorkLoop
from pipeline.run.work_queue import WorkItem, by_document
from pipeline.run.worker import StartWorker
from pipeline.run.worker_pool import WorkerPool, local_workers
from pipeline.sources import read_source, source_remarks
from pipeline.stores.ledger.queries import Status
from pipeline.system.atomic_write import failing_disk_stops
from pipeline.system.machine_load import OthersLoad
from pipeline.system.run_directory import RunDirectory
from pipeline.system.stop_signal import StopSignal
from pipeline.system.units import counted
from pipeline.tasks.throughput_meter import ThroughputMeter

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. ``reason`` is "done", what was not answered and why, why it stopped early (a signal,
    the deadline, a full disk, a source that changed under it), or which of its files could not be written.
    ``settled``: by task, what had to be said when all its answers were looked at together.
    """

    exit_code: int
    reason: str
    directory: Path
    status: Status
    report: Path
    outputs: tuple[Written, ...] = ()
    settled: Mapping[str, str] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """The end in a few words."""
        if self.exit_code == EXIT_STOPPED:
            return f"Stopped early ({self.reason}); the same command goes on"
        return "All done" if self.exit_code == EXIT_DONE else f"Finished; {self.reason}"


def run(
    config: Config,
    *,
    limit: int | None = None,
    only: str | None = None,
    fork: bool = False,
    kinds: Collection[str] | None = None,
    observer: Observer = lambda _: None,
    stop: StopSignal | None = None,
    outputs: Sequence[Output] = (),
    workers: Callable[[Config, RunDirectory], StartWorker] = local_workers,
) -> RunResult:
    """Do what is left to do in the configuration's run directory.

    ``limit`` reads only the first so many documents, ``only`` those of this id; ``kinds`` runs only tasks
    of these kinds; ``fork`` starts changed tasks beside the old ones; ``outputs`` are tables to write at its
    end beside those of the configuration; ``workers`` says where the model is. Raises AlreadyRunning,
    UsageError and its kinds, LedgerError; a stop wished for is a result, not an error.
    """
    stop = stop or StopSignal()
    directory = RunDirectory(config.run.directory)
    outputs = all_outputs(config, outputs)
    with failing_disk_stops(directory.path), Entered(config, directory, stop, workers) as entered:
        admission = Admission(config, entered, outputs, kinds=kinds, fork=fork)
        prepared = admission.through()
        session = begin_session(
            config,
            directory,
            entered.ledger,
            prepared,
            admission.resolved,
            fork=fork,
            died_in=entered.watchdog.died_in,
        )
        entered.watchdog.settle()
        told = Noted(entered.held, observer)
        night = Night(
            config, directory, prepared, session, entered.pool, entered.watchdog, stop, told, (limit, only)
        )
        return night.through(outputs)


class Night:
    """One run over one run directory, accepted and begun."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        prepared: Preparation,
        session: RunSession,
        workers: WorkerPool,
        watchdog: RunnerWatchdog,
        stop: StopSignal,
        observer: Observer,
        chosen: tuple[int | None, str | None],
    ) -> None:
        self._config = config
        self._directory = directory
        self._prepared = prepared
        self._session = session
        self._ledger = session.ledger
        self._workers = workers
        self._watchdog = watchdog
        self._stop = stop
        self._observer = observer
        self._others = OthersLoad()
        self._closing = Closing(config, directory, session)
        self._chosen = chosen  # the first so many documents, those of one id
        self._entered: Contents | None = None  # what the reading that counts has given
        self._met: Contents | None = None  # what the works were taken from
        self._source_changed = False
        self._guard = ResourceGuard(
            directory.path,
            disk_floor_bytes=config.run.keep_free_disk,
            memory_floor_bytes=config.run.keep_free_memory,
        )

    def through(self, outputs: Sequence[Output]) -> RunResult:
        """Read, work, look whether that is still the source, report and export; whatever happens, the ledger
        says how it ended, and no worker is left.
        """
        ending, settled = Ending(), self._prepared
        try:
            with failing_disk_stops(self._directory.path):
                for remark in source_remarks(self._config.source):
                    tell(self._observer, Progress("remark", message=remark))
                sampler = DocumentSampler()
                self._say_reading("reading the inputs")
                self._read(sampler)
                settled = self._settle(sampler)
                self._work(settled, sampler)
                self._reconcile()
            ending = Ending(*self._verdict())
        except StoppedEarly as stopped:
            ending = Ending(stopped.exit_code, str(stopped))
        except OvernightError as error:
            ending = Ending(error.exit_code, str(error))
            raise
        finally:
            self._workers.close(at_once=not ending.came_to_its_end)
            ending = self._close(settled, ending, outputs)
        return RunResult(
            ending.exit_code,
            ending.reason,
            self._directory.path,
            self._ledger.status(),
            self._directory.report,
            self._closing.outputs,
            self._closing.settled,
        )

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, sampler: DocumentSampler) -> None:
        """Enter every input in the ledger; it counts once all of them are. Raises SourceError."""
        contents = Contents()
        read_in(
            self._config.source,
            self._source(),
            self._ledger.start_inventory(self._session.number),
            watch=lambda items: sampler.watch(contents.watch(items)),
            fields={name for task in self._prepared.tasks for name in task.job.fields},
            check=self._check,
            say=self._say_reading,
        )
        self._entered = contents

    def _say_reading(self, text: str) -> None:
        tell(self._observer, Progress("reading", message=text))

    def _source(self) -> ChosenDocuments:
        fields = sorted({name for task in self._ledger.tasks() for name in task.job.fields})
        return ChosenDocuments(read_source(self._config.source, fields), *self._chosen)

    def _check(self) -> None:
        """Raise StoppedEarly when the run is to stop or the disk runs full; a worker gives its memory back
        before the system runs out of it.
        """
        self._stop.check()
        # whether it helped is looked at before another model is loaded in the place of the one that is gone
        while (short := self._guard.check(self._workers.activity)) is not None:
            self._workers.sacrifice(short)

    # ── working ─────────────────────────────────────────────────────────────────────────────────────────────

    def _settle(self, sampler: DocumentSampler) -> Preparation:
        """The plan for the documents as they turned out; no model is loaded yet."""
        if not any(works for works, _ in self._pending_sizes()):
            return self._prepared
        settled = self._prepared.settled(longest_row(self._prepared.tasks, sampler.longest))
        if settled.plan != self._prepared.plan:
            self._session.annotate(plan=asdict(settled.plan))
        return settled

    def _work(self, prepared: Preparation, sampler: DocumentSampler) -> None:
        """All pending works; those that were being computed when a worker died go last, and apart."""
        sizes = self._pending_sizes()
        if not any(works for works, _ in sizes):
            return
        foretold = predict(prepared, sampler.sample, sizes, self._others.busy_cores)
        self._session.annotate(forecast=foretold)
        if told := rests_on(foretold):
            self._say_reading(told)
        pace = ThroughputMeter(sizes_by_task(prepared, sizes, foretold))
        works = sum(works for works, _ in sizes)
        progress = WorkProgress(self._observer, works, pace, self._session.annotate)
        in_doubt = InDoubt(self._session, progress, self._config.run.max_attempts)
        loop = WorkLoop(
            self._session,
            self._workers,
            prepared.plan,
            progress,
            in_doubt,
            check=self._check,
            at=self._watchdog.at,
        )
        loop.through(self._pending(prepared, in_doubt))
        while (group := in_doubt.next_group()) is not None:
            loop.through(iter(group))

    def _pending_sizes(self) -> list[tuple[int, int]]:
        """Of each task, the works that are left and their characters."""
        return [self._ledger.pending_size(task.job.name) for task in self._prepared.tasks]

    def _pending(self, prepared: Preparation, in_doubt: InDoubt) -> Iterator[WorkItem | None]:
        """The works the ledger calls pending, in reading order, and None after each block read; doubtful ones
        are set aside.
        """
        for block in blocks(self._documents_again(), BLOCK_DOCUMENTS):
            works: list[WorkItem] = []
            for task in prepared.tasks:
                keyed = {task.job.key(document): document for document in block}
                for key, pending in self._ledger.pending(task.job.name, list(keyed)).items():
                    work = WorkItem(task, keyed[key], pending.attempts, pending.crashes)
                    if work.doubtful:
                        in_doubt.set_aside(work)
                    else:
                        works.append(work)
            yield from by_document(works) if prepared.plan.layout == "document_first" else works
            yield None

    def _documents_again(self) -> Iterator[Document]:
        """The source read a second time, as far as that goes: whether it is still the same is seen in the
        end.
        """
        self._met = Contents()
        try:
            for item in self._met.watch(self._source()):
                if isinstance(item, Document):
                    yield item
        except SourceError as error:
            _log.warning("the source cannot be read any more: %s", error)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────

    def _reconcile(self) -> None:
        """Read the source once more where it has changed while the run worked: works whose documents are gone
        are dropped, new ones wait for the next run. Raises StoppedEarly where nothing can be read now.
        """
        if self._met is None or self._met == self._entered:
            return
        self._source_changed = True
        self._say_reading("the source has changed meanwhile: reading it again")
        try:
            self._read(DocumentSampler())
        except SourceError as error:
            raise StoppedEarly(f"the source cannot be read any more: {error}") from None

    def _verdict(self) -> tuple[int, str]:
        """Exit code and reason of a run that came to its end, by the documents that it was about."""
        status = self._ledger.status()  # raises when the counts do not add up
        states = [self._ledger.states_seen(task.job.name) for task in self._prepared.tasks]
        if waiting := max(counts["pending"] + counts["running"] for counts in states):
            if not self._source_changed:
                raise OvernightError(
                    f"{counted(waiting, 'document')} read and not worked on: a fault of ours"
                )
            new = counted(waiting, "new document")
            return EXIT_STOPPED, f"the source changed while the run worked; for the next one: {new}"
        missing = ["some documents failed"] if any(map(_failed, states)) else []
        if status.unreadable_files:
            missing.append(status.unreadable)
        return (EXIT_SOME_FAILED, ", ".join(missing)) if missing else (EXIT_DONE, "done")

    def _close(self, prepared: Preparation, ending: Ending, outputs: Sequence[Output]) -> Ending:
        """Leave what people look at in the morning; how the run ended is told once more, for a file may be
        missing.
        """
        ending = self._closing.end(ending, self._workers)
        tell(self._observer, Progress("reporting"))
        ending = self._closing.export(ending, outputs)
        return self._closing.report(ending, prepared)


def _failed(counts: Mapping[str, int]) -> bool:
    return bool(counts["failed"] or counts["quarantined"])
