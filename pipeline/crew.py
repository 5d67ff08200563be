"""The one worker on duty: started when first needed, started again after a death, never two at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pipeline.config import Config
from pipeline.errors import OvernightError, WorkerDied
from pipeline.records import Plan
from pipeline.run_directory import RunDirectory
from pipeline.supervisor import WorkerProcess

_LOAD_TRIES = 2


class Crew:
    """Gives out a worker with its model loaded.

    ``say`` hears progress messages, ``loaded`` the facts of each load; ``check`` may raise to give up.
    """

    def __init__(
        self, config: Config, plan: Plan, directory: RunDirectory, say: Callable[[str], None], loaded: Callable[[Mapping[str, Any]], None],
        check: Callable[[], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._plan = plan
        self._directory = directory
        self._say = say
        self._loaded = loaded
        self._check = check
        self._worker: WorkerProcess | None = None

    def worker(self) -> WorkerProcess:
        """The worker. Raises OvernightError when the model cannot be loaded, or what the worker refused with."""
        for attempt in range(_LOAD_TRIES):
            if self._worker is not None:
                break
            self._say("loading the model")
            try:
                self._worker = WorkerProcess(self._config, self._plan, self._directory.offload, self._directory.path / "worker.log")
                self._worker.wait_loaded(self._say, self._check)
            except WorkerDied as death:
                self.dismiss(at_once=True)
                if attempt + 1 == _LOAD_TRIES:
                    raise OvernightError(f"the model could not be loaded: {death} (in {self._directory.path})") from None
                continue
            self._loaded(self._worker.facts)
        assert self._worker is not None
        return self._worker

    @property
    def computing(self) -> Collection[int]:
        """Requests that the worker was computing when last heard of."""
        return () if self._worker is None else self._worker.started

    def dismiss(self, *, at_once: bool) -> None:
        """End the worker: at once, with what it is doing, or as soon as it is idle."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        if at_once:
            worker.kill()
        else:
            worker.close()
