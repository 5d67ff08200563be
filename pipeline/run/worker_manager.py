"""The one worker on duty: started ahead of time or when first needed, started again after a death, never two
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

from pipeline.config import Config
from pipeline.errors import OvernightError, WorkerDied
from pipeline.records import Plan
from pipeline.run.resource_guard import Holds
from pipeline.run.worker_process import WorkerProcess
from pipeline.system.run_directory import RunDirectory

_LOAD_TRIES = 2


class WorkerPool:
    """Gives out a worker with its model loaded. A context manager: no worker outlives it.

    ``say`` hears progress messages, ``loaded`` the facts of each load.
    """

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        say: Callable[[str], None],
        loaded: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._config = config
        self._directory = directory
        self._say = say
        self._note_loaded = loaded
        self._worker: WorkerProcess | None = None
        self._state = "called"  # of the worker, if there is one: called, loading, loaded
        self._failed_loads = 0
        self._waited_seconds = self._served_seconds = 0.0
        self._peak_bytes = (0, 0)
        self.store_facts: list[Mapping[str, Any]] = []
        """What each dismissed worker said about persisted caches."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss(at_once=True)

    def call(self) -> WorkerProcess:
        """Start a worker if there is none. It imports its libraries beside us and waits for the plan. Raises
        WorkerDied.
        """
        if self._worker is None:
            self._worker, self._state = (
                WorkerProcess(self._config, self._directory.path / "worker.log"),
                "called",
            )
        return self._worker

    def worker(self, plan: Plan, wait_seconds: float) -> WorkerProcess | None:
        """The worker, or None while it is still loading the model after so long.

        Raises OvernightError when the model cannot be loaded, or what the worker refused with.
        """
        if self._worker is not None and self._state == "loaded":
            return self._worker
        try:
            worker = self.call()
            if self._state == "called":
                self._say("loading the model")
                worker.load(plan, self._directory.offload)
                self._state = "loading"
            if not worker.loaded(wait_seconds, self._say):
                return None
        except WorkerDied as death:
            self.dismiss(at_once=True)
            self._failed_loads += 1
            if self._failed_loads == _LOAD_TRIES:
                raise OvernightError(
                    f"the model could not be loaded: {death} (in {self._directory.path})"
                ) from None
            return None
        self._state, self._failed_loads = "loaded", 0
        self._note_loaded(worker.facts)
        return worker

    @property
    def holds(self) -> Holds:
        """What the worker does at the moment, as far as is known."""
        if self._worker is None:
            return "nothing"
        if self._state != "loaded":
            return "loading"
        return "computing" if self._worker.started else "idle"

    @property
    def computing(self) -> Collection[int]:
        """Requests that the worker was computing when last heard of."""
        return () if self._worker is None else self._worker.started

    @property
    def waiting(self) -> Mapping[str, float]:
        """How long the models of dismissed workers were there (``seconds``), and how long of it they waited
        for work; empty without one.
        """
        if not self._served_seconds:
            return {}
        return {"seconds": round(self._served_seconds, 3), "waited_seconds": round(self._waited_seconds, 3)}

    @property
    def peaks(self) -> Mapping[str, int]:
        """The most that any dismissed worker held, as of its last replies; empty before there were any."""
        ram, vram = self._peak_bytes
        return {"ram_bytes": ram, "vram_bytes": vram} if ram else {}

    def dismiss(self, *, at_once: bool) -> None:
        """End the worker: at once, with what it is doing, or as soon as it is idle."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._waited_seconds += worker.waited_seconds
        self._served_seconds += worker.served_seconds
        self._peak_bytes = (
            max(self._peak_bytes[0], worker.peak_bytes[0]),
            max(self._peak_bytes[1], worker.peak_bytes[1]),
        )
        if at_once or self._state != "loaded":
            worker.kill()
        else:
            worker.close()
        if worker.store_facts:
            self.store_facts.append(worker.store_facts)


def added_up(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts of several workers in one; of anything that is no count, the last word."""
    total: dict[str, Any] = {}
    for one in facts:
        for name, value in one.items():
            known = total.get(name)
            if isinstance(value, Mapping):
                total[name] = added_up([known or {}, value])
            elif (
                isinstance(value, int | float)
                and isinstance(known, int | float)
                and not name.endswith(("_per_second", "used_bytes"))
            ):
                total[name] = known + value
            else:
                total[name] = value
    return total
