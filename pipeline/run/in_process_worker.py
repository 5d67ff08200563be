"""A worker in this very process: the same messages, encoded and decoded, and the engine stepped while they
are collected. For tests that need no process, and for whoever steps through a run with a debugger.

It computes in ``collect``, on the caller's thread, so nothing goes on beside it; what ends the engine by an
exception is a death, and what would end a process ends this one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.config import Config
from pipeline.engine.interface import Backend
from pipeline.errors import DeviceLost, OvernightError, WorkerDied
from pipeline.records import Plan, Request
from pipeline.run.protocol import (
    Configure,
    DeviceFailed,
    FromWorker,
    Refused,
    Release,
    ToWorker,
    admission,
    decode_from_worker,
    decode_to_worker,
    encode,
    loading,
)
from pipeline.run.worker import Held, StartWorker
from pipeline.run.worker_service import LoadedModel, configured, loaded
from pipeline.system.run_directory import RunDirectory

_log = logging.getLogger(__name__)


class InProcessWorker:
    """See pipeline.run.worker.Worker."""

    def __init__(self, config: Config, offload_folder: Path, ring: Callable[[], None] = lambda: None) -> None:
        self.held = Held()
        self._offload_folder = offload_folder
        self._ring = ring
        self._inbox: deque[bytes] = deque()
        self._outbox: deque[bytes] = deque()
        self._backend: Backend | None = None
        self._model: LoadedModel | None = None
        self._death: str | None = None
        self._post(Configure(config.model_dump()))

    def load(self, plan: Plan, proof: Sequence[Request] = ()) -> None:
        """See Worker."""
        self.held.state = "loading"
        self._post(loading(plan, str(self._offload_folder), proof))

    def admit(self, requests: Sequence[Request]) -> None:
        """See Worker."""
        if requests:
            self.held.lease(requests)
            self._post(admission(requests))

    def release(self, request_ids: Sequence[int]) -> None:
        """See Worker."""
        if request_ids:
            self.held.let_go(request_ids)
            self._post(Release(tuple(request_ids)))

    def collect(self) -> list[FromWorker]:
        """See Worker; computes one step."""
        if self._death is None:
            self._advance()
        heard = [decode_from_worker(payload) for payload in self._outbox]
        self._outbox.clear()
        for message in heard:
            self.held.hear(message)
        if not heard and self._death is not None:
            raise WorkerDied(self._death)
        if self._model is not None and not self._model.idle:
            self._ring()  # there is more to collect: it is computed by collecting
        return heard

    def close(self, *, at_once: bool = False) -> None:
        """See Worker."""
        if self._model is not None and self._death is None and not at_once:
            self._model.close()
            for payload in self._outbox:
                self.held.hear(decode_from_worker(payload))
        self._death = self._death or "the worker was closed"
        self._model = self._backend = None

    def _post(self, message: ToWorker) -> None:
        self._inbox.append(encode(message))
        self._ring()

    def _tell(self, message: FromWorker) -> None:
        self._outbox.append(encode(message))

    def _advance(self) -> None:
        """What a process does between two looks at its inbox."""
        try:
            while self._inbox and self._death is None:
                self._take(decode_to_worker(self._inbox.popleft()))
            if self._model is not None and not self._model.idle:
                self._model.step()
        except Exception as error:  # noqa: BLE001  # whatever it is, a process would have died of it
            _log.exception("the worker in this process ended")
            self._death = f"the worker ended by {type(error).__name__}: {error}"

    def _take(self, message: ToWorker) -> None:
        if self._model is not None:
            self._model.take(message)
            return
        try:
            if self._backend is None:
                self._backend = configured(message)
            else:
                self._model = loaded(self._backend, message, self._tell)
        except DeviceLost as error:
            self._tell(DeviceFailed(str(error)))
            self._death = str(error)
        except OvernightError as error:
            self._tell(Refused(type(error).__name__, str(error)))
            self._death = "the worker refused to load the model"


def in_process_workers(config: Config, directory: RunDirectory) -> StartWorker:
    """All workers of a run are in this process: ``run(config, workers=in_process_workers)``."""
    return lambda number, ring: InProcessWorker(config, directory.offload / str(number), ring)
