"""The night, from top to bottom: read the inputs, ask the model about each document, record every answer,
report.

The story of a document: it is read and entered in the ledger; its attempt is marked; its task asks questions,
which the worker answers in batches; what the task makes of them is recorded, and only then counts. Whatever
ends this process, the same command goes on from what is recorded. The worker is a process of its own and
always has more questions than it can compute at once, so reading, tokenizing and commits happen beside the
model.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.engine.registry import open_backend
from pipeline.errors import EXIT_DONE, EXIT_SOME_FAILED, OvernightError, StoppedEarly, WorkerDied
from pipeline.prepare.dry_run import DocumentSampler, longest_row
from pipeline.prepare.predict import learn, predict
from pipeline.prepare.prepare import Preparation, meant_by_auto, prepare, resolve
from pipeline.records import Document, Failure, Generation, Outcome, Progress, Reject, WorkId
from pipeline.results.calibrate import calibrate_as_configured, check_configured
from pipeline.results.report import write_report
from pipeline.run.commit_buffer import CommitBuffer
from pipeline.run.fault_isolation import FaultIsolation
from pipeline.run.intake import BLOCK_DOCUMENTS, Intake, blocks, chosen_documents, read_in
from pipeline.run.resource_guard import ResourceGuard
from pipeline.run.runner_watchdog import RunnerWatchdog
from pipeline.run.work_queue import WorkItem, by_document, next_group
from pipeline.run.worker_manager import WorkerPool, added_up
from pipeline.sources import read_source
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import Status
from pipeline.system.atomic_write import failing_disk_stops
from pipeline.system.run_directory import RunDirectory
from pipeline.system.stop_signal import StopSignal
from pipeline.system.versions import stack_versions
from pipeline.tasks.driver import TaskDriver
from pipeline.tasks.throughput_meter import ThroughputMeter

_log = logging.getLogger(__name__)

Observer = Callable[[Progress], None]
_DEATHS_OF_NOBODY = 3
_WORTH_ANOTHER_LOOK = ("model_error", "out_of_memory", "fault", "stalled")
_POLL_SECONDS = 0.2
# Works under way for each row of a batch: enough to sort by length, few enough to hold their texts in memory.
_WORKS_PER_ROW = 4
# Works begun together, for each row: their attempts are marked in one commit.
_BEGUN_PER_ROW = 2
# Questions of one document out at a time, for each row of a batch: while one batch is computed, the next one
# is there.
_ASKED_PER_ROW = 2
_WINDOW_CHARACTERS = 64_000_000


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. ``reason`` is "done", "some failed", or why it stopped early (a signal, the deadline,
    a full disk).
    """

    exit_code: int
    reason: str
    directory: Path
    status: Status
    report: Path


def run(
    config: Config,
    *,
    limit: int | None = None,
    only: str | None = None,
    fork: bool = False,
    kinds: Collection[str] | None = None,
    observer: Observer = lambda _: None,
    stop: StopSignal | None = None,
) -> RunResult:
    """Do what is left to do in the configuration's run directory.

    ``limit`` reads only the first so many documents, ``only`` those of this id; ``kinds`` runs only tasks of
    these kinds; ``fork`` starts changed tasks beside the old ones. Raises AlreadyRunning, UsageError and its
    kinds, LedgerError; a stop wished for is a result, not an error.
    """
    stop = stop or StopSignal()
    directory = RunDirectory(config.run.directory)
    with (
        failing_disk_stops(directory.path),
        directory.locked(),
        directory.logging(),
        stop.watch_deadline(config.run.deadline),
        Ledger.open(directory.ledger, write=True) as ledger,
        RunnerWatchdog(directory.note, config.engine.stall_seconds) as here,
    ):
        return Night(config, directory, ledger, observer, stop, here, (limit, only)).through(fork, kinds)


class Night:
    """One run over one run directory."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        ledger: Ledger,
        observer: Observer,
        stop: StopSignal,
        here: RunnerWatchdog,
        chosen: tuple[int | None, str | None] = (None, None),
    ) -> None:
        self._config = config
        self._directory = directory
        self._ledger = ledger
        self._observer = observer
        self._stop = stop
        self._here = here
        self._chosen = chosen  # the first so many documents, those of one id
        self._under_way: dict[WorkId, WorkItem] = {}
        self._faults = FaultIsolation(config.run.max_attempts)
        # for the whole run: a late reply must never be taken for another question's
        self._request_ids = itertools.count(1)
        self._deaths_of_nobody = 0
        self._intake = Intake()
        self._sampler = DocumentSampler()
        self._guard = ResourceGuard(
            directory.path,
            disk_floor_bytes=config.run.keep_free_disk,
            memory_floor_bytes=config.run.keep_free_memory,
        )
        self._workers = WorkerPool(config, directory, self._say_loading, self._note_loaded)
        self._total = self._done = self._failed = 0

    def through(self, fork: bool, kinds: Collection[str] | None) -> RunResult:
        """Decide, read, work, report; whatever happens, no worker is left."""
        with self._workers:
            if self._ledger.expects_work():
                self._workers.call()
            self._prepared = self._prepare(kinds)
            return self._accepted(fork)

    def _accepted(self, fork: bool) -> RunResult:
        """The run itself; whatever happens, the ledger says how it ended."""
        check_configured(self._config)
        self._ledger.accept_tasks([task.job for task in self._prepared.tasks], fork=fork)
        self._keep_resolved()
        self._run = self._ledger.begin_run(self._facts(), self._here.died_in)
        self._here.settle()
        self._commits = CommitBuffer(self._ledger, self._run)
        exit_code, reason = 1, "fault"
        try:
            with failing_disk_stops(self._directory.path):
                self._read()
                self._work()
            exit_code, reason = self._verdict()
        except StoppedEarly as stopped:
            exit_code, reason = stopped.exit_code, str(stopped)
        except OvernightError as error:
            exit_code, reason = error.exit_code, str(error)
            raise
        finally:
            self._workers.dismiss(at_once=exit_code not in (EXIT_DONE, EXIT_SOME_FAILED))
            self._close(exit_code, reason)
        return RunResult(
            exit_code, reason, self._directory.path, self._ledger.status(), self._directory.report
        )

    def _close(self, exit_code: int, reason: str) -> None:
        """Write down how the run ended: what it had begun and not finished is pending again, not running.

        On a full disk that cannot be done; what was recorded before is safe all the same.
        """
        # first of all: it may be what has filled the disk
        shutil.rmtree(self._directory.offload, ignore_errors=True)
        try:
            self._ledger.drop(self._run, list(self._under_way), "interrupted", reason)
            if self._workers.store_facts:
                self._ledger.annotate_run(self._run, store=added_up(self._workers.store_facts))
            if self._workers.waiting:
                self._ledger.annotate_run(self._run, waiting=self._workers.waiting, peaks=self._workers.peaks)
            self._ledger.end_run(self._run, exit_code, reason)
            self._tell(Progress("reporting"))
            self._ledger.annotate_run(
                self._run, calibration=calibrate_as_configured(self._ledger, self._config)
            )
            write_report(self._ledger, self._directory.path)
            learn(self._config, self._prepared, self._directory.path / "report.json")
        except (StoppedEarly, OSError) as error:
            _log.error("the report could not be written: %s", error)

    def _prepare(self, kinds: Collection[str] | None) -> Preparation:
        """What ``auto`` meant when the run directory was made stays."""
        backend = open_backend(self._config)
        self._resolved = resolve(self._config, backend, self._ledger.resolved())
        return prepare(self._config, backend, self._resolved, kinds)

    def _keep_resolved(self) -> None:
        """What ``auto`` meant is kept once the run is accepted; what was asked for by name says nothing about
        it.
        """
        for name in meant_by_auto(self._config):
            self._ledger.resolve(name, self._resolved[name])

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> None:
        """Enter every input in the ledger before the model is asked anything."""
        self._tell(Progress("reading", message="reading the inputs"))
        self._intake = read_in(
            self._sampler.watch(self._source()),
            self._ledger.start_inventory(self._run),
            whole=self._chosen == (None, None),
            max_rejects=self._config.source.max_rejects,
            fields={name for task in self._prepared.tasks for name in task.job.fields},
            check=self._check,
            say=lambda text: self._tell(Progress("reading", message=text)),
        )
        if not self._intake.documents:
            self._tell(Progress("reading", message="the source is empty: nothing to do"))

    def _check(self) -> None:
        """Raise StoppedEarly when the run is to stop or the disk runs full, WorkerDied when memory runs out
        under the worker.
        """
        self._stop.check()
        self._guard.check(self._workers.holds)

    def _source(self) -> Iterator[Document | Reject]:
        fields = sorted({name for task in self._ledger.tasks() for name in task.job.fields})
        return chosen_documents(read_source(self._config.source, fields), *self._chosen)

    # ── working ─────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        """All pending works, those that were beside a dead worker before last and alone."""
        sizes = [self._ledger.pending_size(task.job.name) for task in self._prepared.tasks]
        self._total = sum(works for works, _ in sizes)
        if not self._total:
            return
        self._settle_plan()
        forecast = predict(self._prepared, self._sampler.sample, sizes)
        self._ledger.annotate_run(self._run, forecast=forecast)
        self._pace = ThroughputMeter(sum(characters for _, characters in sizes))
        self._through(self._pending())
        while (group := self._faults.next_group()) is not None:
            self._through(iter(group))

    def _settle_plan(self) -> None:
        """The plan for the documents as they turned out; the model is not loaded yet."""
        settled = self._prepared.settled(longest_row(self._prepared.tasks, self._sampler.longest))
        if settled.plan != self._prepared.plan:
            self._ledger.annotate_run(self._run, plan=asdict(settled.plan))
        self._prepared = settled

    def _pending(self) -> Iterator[WorkItem | None]:
        """The works the ledger calls pending, in reading order, and None after each block read; doubtful ones
        are set aside.
        """
        documents = (item for item in self._source() if isinstance(item, Document))
        for block in blocks(documents, BLOCK_DOCUMENTS):
            works: list[WorkItem] = []
            for task in self._prepared.tasks:
                keyed = {task.job.key(document): document for document in block}
                for key, pending in self._ledger.pending(task.job.name, list(keyed)).items():
                    work = WorkItem(task, keyed[key], pending.attempts, pending.crashes)
                    if work.doubtful:
                        self._set_aside(work)
                    else:
                        works.append(work)
            yield from by_document(works) if self._prepared.plan.layout == "document_first" else works
            yield None

    def _through(self, works: Iterator[WorkItem | None]) -> None:
        """See all of ``works`` landed. When the worker dies, those it was computing come under suspicion, the
        others go on.
        """
        while True:
            driver = TaskDriver(
                self._prepared.plan.max_batch_rows * _ASKED_PER_ROW,
                self._pace,
                self._request_ids,
                self._here.at,
            )
            try:
                self._stream(works, driver)
                return
            except StoppedEarly:
                self._record(driver, at_once=True)
                raise
            except WorkerDied as death:
                self._record(driver, at_once=True)
                works = itertools.chain(self._after_death(driver, death), works)

    def _stream(self, works: Iterator[WorkItem | None], driver: TaskDriver) -> None:
        """The main loop: keep the worker supplied, record what lands. Questions go out before anything waits
        for the disk.

        While there is room in the window nothing waits for the worker, be it for its answers or for its model
        to be loaded.
        """
        plan = self._prepared.plan
        exhausted = hungry = False
        while len(driver) or not exhausted:
            self._check()
            worker = self._workers.worker(plan, 0 if hungry or not len(driver) else _POLL_SECONDS)
            if worker is not None:
                worker.admit(driver.requests())
            hungry = (
                not exhausted
                and driver.steps_open < plan.max_batch_rows * _WORKS_PER_ROW
                and self._characters() < _WINDOW_CHARACTERS
            )
            if hungry:
                group, exhausted = next_group(works, plan.max_batch_rows * _BEGUN_PER_ROW)
                self._begin(group, driver)
            self._record(driver)
            if worker is not None and len(driver):
                finished = worker.collect(0 if hungry else _POLL_SECONDS)
                _stop_on_full_disk(finished)
                self._commits.add((), driver.receive(finished))
                worker.release(driver.cancelled())
                if finished:
                    self._show_pace()
        self._record(driver, at_once=True)

    def _begin(self, group: Sequence[WorkItem], driver: TaskDriver) -> None:
        """Mark the attempts, durably, then start the documents; what an earlier attempt was answered is not
        asked again.
        """
        taken = set(self._ledger.mark(self._run, list(dict.fromkeys(work.id for work in group))))
        for work in group:
            if (
                work.id not in taken or work.id in driver
            ):  # a repeated row, done or begun since the ledger was asked
                continue
            self._under_way[work.id] = work
            recorded = self._ledger.replies(*work.id) if work.attempts else {}
            driver.begin(work.task, work.document, work.attempts + 1, recorded, work.awaited)

    def _record(self, driver: TaskDriver, *, at_once: bool = False) -> None:
        """Documents that landed are done once they are committed, a second's worth in one transaction."""
        self._commits.add([self._explained(outcome) for outcome in driver.landed()], ())
        recorded = self._commits.commit(at_once=at_once)
        for outcome in recorded:
            del self._under_way[outcome.task, outcome.key]
            self._failed += outcome.state != "done"
        self._done += len(recorded)
        if recorded:
            self._show_pace()

    def _characters(self) -> int:
        return sum(len(work.document.text) for work in self._under_way.values())

    # ── when the worker dies ────────────────────────────────────────────────────────────────────────────────

    def _after_death(self, driver: TaskDriver, death: WorkerDied) -> Iterator[WorkItem]:
        """Put the suspects aside, or the guilty one into quarantine, and give back the works that were merely
        beside them.
        """
        _log.warning("%s", death)
        suspected = set(driver.suspects(self._workers.computing))
        self._workers.dismiss(at_once=True)
        works, self._under_way = self._under_way, {}
        suspects = [
            replace(works[work], attempts=works[work].attempts + 1, crashes=works[work].crashes + 1)
            for work in sorted(suspected)
        ]
        others = [
            replace(work, attempts=work.attempts + 1)
            for work_id, work in works.items()
            if work_id not in suspected
        ]
        self._ledger.drop(self._run, [work.id for work in suspects], "crashed", str(death))
        self._ledger.drop(
            self._run, [work.id for work in others], "interrupted", "the worker died of another document"
        )
        self._deaths_of_nobody = 0 if suspects else self._deaths_of_nobody + 1
        if self._deaths_of_nobody >= _DEATHS_OF_NOBODY:
            raise OvernightError(
                f"the worker died {self._deaths_of_nobody} times in a row while it computed nothing: {death}"
            )
        guilty = self._faults.accuse(suspects)
        if guilty is not None:
            message = (
                f"the worker died {guilty.crashes} times with this document, the last time alone: {death}"
            )
            self._quarantine(guilty, Failure("worker_died", message, guilty.crashes))
        return iter(others)

    def _set_aside(self, work: WorkItem) -> None:
        """A work that earlier runs had trouble with is tried last and alone; one that took the runner down
        too often, never again.
        """
        died = (
            min(work.crashes, self._ledger.runner_deaths(*work.id))
            if work.crashes >= self._config.run.max_attempts
            else 0
        )
        if died < self._config.run.max_attempts:
            self._faults.set_aside(work)
            return
        message = (
            f"the runner itself died {died} times while it worked on this document: building its "
            f"prompts, or reading its answers"
        )
        self._quarantine(work, Failure("runner_died", message, died))

    def _quarantine(self, work: WorkItem, failure: Failure) -> None:
        task, key = work.id
        told = replace(failure, message=f"{failure.message}. {self._again(work)}")
        self._ledger.finish(self._run, [Outcome(task, key, "quarantined", failure=told)])
        self._done, self._failed = self._done + 1, self._failed + 1

    def _explained(self, outcome: Outcome) -> Outcome:
        """A failure that is no property of the text comes with the command that shows it again."""
        if outcome.failure is None or outcome.failure.kind not in _WORTH_ANOTHER_LOOK:
            return outcome
        again = self._again(self._under_way[outcome.task, outcome.key])
        return replace(
            outcome,
            failure=replace(outcome.failure, message=f"{outcome.failure.message.rstrip('.')}. {again}"),
        )

    def _again(self, work: WorkItem) -> str:
        return f"To see it again: {self._directory.reproducing(work.document.id)}"

    # ── around it ───────────────────────────────────────────────────────────────────────────────────────────

    def _verdict(self) -> tuple[int, str]:
        self._ledger.status()  # raises when the counts do not add up
        states = [self._ledger.states_seen(task.job.name) for task in self._prepared.tasks]
        if any(counts["pending"] or counts["running"] for counts in states):
            raise OvernightError(
                "some documents are still pending: the source changed while the run was going. Run again"
            )
        if any(counts["failed"] or counts["quarantined"] for counts in states):
            return EXIT_SOME_FAILED, "some failed"
        if self._intake.damaged:
            return EXIT_SOME_FAILED, f"{self._intake.damaged} input files could not be read to their end"
        return EXIT_DONE, "done"

    def _facts(self) -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "command": sys.argv,
            "config": self._config.anywhere().model_dump(mode="json"),
            "versions": stack_versions(),
            "model": dict(self._prepared.identity["model"]),
            "notes": list(self._prepared.notes),
            "plan": asdict(self._prepared.plan),
        }

    def _note_loaded(self, facts: Mapping[str, Any]) -> None:
        self._ledger.annotate_run(self._run, loaded=dict(facts))
        self._pace.start()
        self._tell(Progress("working", self._done, self._failed, self._total))

    def _show_pace(self) -> None:
        self._tell(
            Progress(
                "working",
                self._done,
                self._failed,
                self._total,
                self._pace.tokens_per_second,
                self._pace.eta_seconds,
            )
        )

    def _say_loading(self, message: str) -> None:
        self._tell(Progress("loading", self._done, self._failed, self._total, message=message))

    def _tell(self, progress: Progress) -> None:
        if progress.message:
            _log.info("%s", progress.message)
        self._observer(progress)


def _stop_on_full_disk(finished: Sequence[Generation]) -> None:
    """A disk that cannot take the caches of one document takes no other's: raise StoppedEarly, and all of
    them stay pending.
    """
    for generation in finished:
        if generation.error is not None and generation.error[0] == "disk_full":
            raise StoppedEarly(f"{generation.error[1]}; free some space and run the same command again")
