"""What a run is refused for before it reads the source, in the order in which it looks.

There is one list: ``run`` takes its steps and ends at the first refusal, ``overnight doctor`` takes the same
ones and tells of each. What the source itself is refused for is in ``intake.read_in``, which both call next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from pipeline.config import Config
from pipeline.engine.registry import open_backend
from pipeline.prepare.prepare import Preparation, prepare, resolve
from pipeline.results.after_run import check_configured
from pipeline.results.export.layout import Output
from pipeline.results.outputs import check_outputs
from pipeline.results.report import check_report
from pipeline.stores.ledger.reader import LedgerReader
from pipeline.system.run_directory import RunDirectory

Step = tuple[str, Callable[[], object]]
"""What is looked at, in a word or two, and the look; it raises a kind of OvernightError."""


class Place(Protocol):
    """The run directory, as far as whoever asks wants to be in it."""

    def lock(self) -> None:
        """Whether it can be one, and nobody else is in it. Raises AlreadyRunning, UsageError."""
        ...

    def open_ledger(self) -> LedgerReader | None:
        """What it holds; None: nothing yet, and it is left so. Raises UsageError, LedgerError."""
        ...


class Admission:
    """One run that wants to begin: ``outputs`` and ``kinds`` are asked for, ``fork`` starts changed tasks
    beside the old ones. After the steps, ``prepared`` and what ``auto`` means, ``resolved``; ``prepared`` is
    None where the model was refused.
    """

    def __init__(
        self,
        config: Config,
        place: Place,
        outputs: Sequence[Output],
        *,
        kinds: Collection[str] | None = None,
        fork: bool = False,
    ) -> None:
        self._config = config
        self._place = place
        self._outputs = outputs
        self._kinds = kinds
        self._fork = fork
        self._ledger: LedgerReader | None = None
        self.resolved: Mapping[str, Any] = {}
        self.prepared: Preparation | None = None

    def steps(self) -> Sequence[Step]:
        """Each rests on those before it, as far as these were taken."""
        return (
            ("output", lambda: check_outputs(self._config, self._outputs)),
            ("run directory", self._enter),
            ("run directory", self._open_ledger),
            ("model", self._prepare),
            ("gold", lambda: check_configured(self._config)),
            ("task", self._check_tasks),
        )

    def through(self) -> Preparation:
        """All steps. Raises what the first of them that refuses raises."""
        for _, step in self.steps():
            step()
        assert self.prepared is not None
        return self.prepared

    @property
    def kept(self) -> Mapping[str, Any]:
        """What ``auto`` has meant in the run directory."""
        return {} if self._ledger is None else self._ledger.resolved()

    def _enter(self) -> None:
        self._place.lock()
        check_report(RunDirectory(self._config.run.directory).path)

    def _open_ledger(self) -> None:
        self._ledger = self._place.open_ledger()

    def _prepare(self) -> None:
        backend = open_backend(self._config)
        self.resolved = resolve(self._config, backend, self.kept)  # what was meant at first stays
        self.prepared = prepare(self._config, backend, self.resolved, self._kinds)

    def _check_tasks(self) -> None:
        if self._ledger is not None and self.prepared is not None:
            self._ledger.check_tasks([task.job for task in self.prepared.tasks], fork=self._fork)
