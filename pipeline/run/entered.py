"""A run inside its run directory: its lock and log, its ledger and workers, and who watches over it. All of
it is given back when the run is over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from pipeline.config import Config
from pipeline.run.runner_watchdog import RunnerWatchdog
from pipeline.run.worker import StartWorker
from pipeline.run.worker_pool import WorkerPool
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import RunDirectory
from pipeline.system.run_lock import HeldLock
from pipeline.system.stop_signal import StopSignal


class Entered:
    """A context manager; see ``pipeline.run.admission.Place``."""

    held: HeldLock
    ledger: Ledger
    watchdog: RunnerWatchdog
    pool: WorkerPool

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        stop: StopSignal,
        workers: Callable[[Config, RunDirectory], StartWorker],
    ) -> None:
        self._config = config
        self._directory = directory
        self._stop = stop
        self._workers = workers
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def lock(self) -> None:
        """Hold the directory, write its log, and hear whoever wants the run to stop."""
        enter = self._open.enter_context
        self.held = enter(self._directory.locked())
        enter(self._directory.logging())
        enter(self._stop.watch_deadline(self._config.run.deadline))
        enter(self._stop.watch_request(lambda: self.held.is_asked_to_stop, "overnight stop"))

    def open_ledger(self) -> Ledger:
        """Open the ledger for writing. Where it expects work, the workers begin to import their libraries
        beside all that is still to be looked at.
        """
        enter = self._open.enter_context
        self.ledger = enter(Ledger.open(self._directory.ledger, write=True))
        self.watchdog = enter(RunnerWatchdog(self._directory.note, self._config.engine.stall_seconds))
        self.pool = enter(WorkerPool(self._workers(self._config, self._directory), self._directory.path))
        if self.ledger.expects_work():
            self.pool.call()
        return self.ledger
