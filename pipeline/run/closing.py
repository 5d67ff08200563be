"""The end of a run: how it ended is written down, its exports and its report are written, each whether or not
the others can be. A disk may be full by now, a share gone; what was recorded before is safe all the same.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.config import Config
from pipeline.errors import EXIT_DONE, EXIT_FAULT, EXIT_SOME_FAILED, EXIT_STOPPED, EXIT_USAGE, StoppedEarly
from pipeline.prepare.predict import learn
from pipeline.prepare.prepare import Preparation
from pipeline.results.after_run import settle_answers
from pipeline.results.export.layout import Output
from pipeline.results.outputs import Written, write_outputs
from pipeline.results.report import write_report
from pipeline.run.session import RunSession
from pipeline.run.worker_pool import WorkerPool
from pipeline.system.run_directory import RunDirectory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: its exit code and why."""

    exit_code: int = EXIT_FAULT
    reason: str = "fault"

    @property
    def came_to_its_end(self) -> bool:
        """Whether everything was asked that there was to ask."""
        return self.exit_code in (EXIT_DONE, EXIT_SOME_FAILED)

    @property
    def leaves_answers(self) -> bool:
        """Whether there are answers to be exported: the run was neither refused nor did it break down."""
        return self.exit_code not in (EXIT_FAULT, EXIT_USAGE)

    def lacking(self, missing: str | None) -> Ending:
        """The same, where a file of the run is ``missing``, a sentence: the same command has work left."""
        return self if missing is None or not self.came_to_its_end else Ending(EXIT_STOPPED, missing)


class Closing:
    """Closes one run, whose workers have ended. Nothing here raises StoppedEarly or OSError."""

    def __init__(self, config: Config, directory: RunDirectory, session: RunSession) -> None:
        self._config = config
        self._directory = directory
        self._session = session
        self.outputs: tuple[Written, ...] = ()
        self.settled: Mapping[str, str] = {}

    def end(self, ending: Ending, workers: WorkerPool) -> Ending:
        """Write down how it ended, before anything else is tried."""
        # first of all: it may be what has filled the disk
        shutil.rmtree(self._directory.offload, ignore_errors=True)
        missing = self._try(lambda: self._session.end(ending.exit_code, ending.reason))
        self._try(lambda: self._session.annotate(**workers.facts))
        return ending.lacking(missing)

    def export(self, ending: Ending, outputs: Sequence[Output]) -> Ending:
        """Settle the answers and write the exports."""
        ledger, directory = self._session.ledger, self._directory.path
        self._try(self._settle)
        if ending.leaves_answers:
            self.outputs = tuple(write_outputs(ledger, directory, outputs))
        return self._lacking(ending, next((one.error for one in self.outputs if one.error), None))

    def _settle(self) -> None:
        self.settled = settle_answers(self._session.ledger, self._config)
        self._session.annotate(calibration=self.settled)

    def report(self, ending: Ending, prepared: Preparation) -> Ending:
        """Write the report, and keep what it tells for the next plan."""
        ledger, directory = self._session.ledger, self._directory.path
        missing = self._try(lambda: write_report(ledger, directory))
        if missing is None:
            self._try(lambda: learn(self._config, prepared, directory / "report.json"))
        return self._lacking(ending, missing)

    def _lacking(self, ending: Ending, missing: str | None) -> Ending:
        """What is missing is written down, too, so that the ledger says what the exit code says."""
        lacking = ending.lacking(missing)
        if lacking != ending:
            self._try(lambda: self._session.end(lacking.exit_code, lacking.reason))
        return lacking

    @staticmethod
    def _try(work: Callable[[], object]) -> str | None:
        """Why it could not be done; None where it was."""
        try:
            work()
        except (StoppedEarly, OSError) as error:
            _log.error("at the end of the run: %s", error)
            return str(error)
        return None
