"""A worker's side of the messages, whatever carries them: a backend configured, its model loaded, requests
worked off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.config import parse_config
from pipeline.engine.interface import Backend, Engine
from pipeline.engine.registry import open_backend
from pipeline.run.protocol import (
    Admit,
    Configure,
    FromWorker,
    Load,
    Loaded,
    Pulse,
    Release,
    Replies,
    Says,
    Started,
    StoreFacts,
    ToWorker,
    admitted,
)
from pipeline.system.atomic_write import failing_disk_stops
from pipeline.system.process_memory import peak_card_bytes, peak_resident_bytes, resident_bytes

_PULSE_SECONDS = 1.0
_STORE_SECONDS = 5.0

Tell = Callable[[FromWorker], None]


class _Reporter:
    """The engine's listener: tells the runner what started, and now and then that the engine is alive."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._last = time.monotonic()

    def started(self, request_ids: Sequence[int]) -> None:
        self._tell(Started(tuple(request_ids)))

    def pulse(self) -> None:
        if time.monotonic() - self._last >= _PULSE_SECONDS:
            self._last = time.monotonic()
            self._tell(Pulse())


def configured(message: ToWorker) -> Backend:
    """The backend of a configuration, with what it needs before there is a plan. Raises OvernightError."""
    assert isinstance(message, Configure)
    backend = open_backend(parse_config(message.config))
    backend.tokenizer()
    return backend


def loaded(backend: Backend, message: ToWorker, tell: Tell) -> LoadedModel:
    """The model under the plan it is told. Raises OvernightError."""
    assert isinstance(message, Load)
    offload_folder = Path(message.offload_folder)
    before_bytes = resident_bytes()
    with failing_disk_stops(offload_folder):
        engine, facts = backend.open_engine(message.plan, offload_folder, lambda text: tell(Says(text)))
    tell(Loaded({**facts, "process_bytes": before_bytes}))
    return LoadedModel(engine, backend, tell)


class LoadedModel:
    """An engine that does what it is told. Each message of replies tells how long the model has waited for
    requests since it was loaded and the most memory that was held; now and then one says what became of
    persisted caches.
    """

    def __init__(self, engine: Engine, backend: Backend, tell: Tell) -> None:
        self._engine = engine
        self._backend = backend
        self._tell = tell
        self._loaded = self._told = time.monotonic()
        self._waited_seconds = 0.0
        engine.listener = _Reporter(tell)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return self._engine.idle

    def take(self, message: ToWorker) -> None:
        """Admit or release requests."""
        match message:
            case Admit():
                self._engine.admit(admitted(message))
            case Release(request_ids):
                self._engine.release(request_ids)

    def waited(self, seconds: float) -> None:
        """So long nothing came and there was nothing to do."""
        self._waited_seconds += seconds

    def step(self) -> None:
        """Compute a little, and tell what finished by it."""
        finished = self._engine.step()
        if not finished:
            return
        now = time.monotonic()
        served_seconds = now - self._loaded
        peaks = peak_resident_bytes(), peak_card_bytes()
        self._tell(Replies(tuple(finished), self._waited_seconds, served_seconds, *peaks))
        if now - self._told >= _STORE_SECONDS:
            self._told = now
            self._tell(StoreFacts(dict(self._backend.store_facts())))

    def close(self) -> None:
        """Write what is still to be written; its last words are what became of persisted caches."""
        self._tell(StoreFacts(dict(self._backend.store_facts(close=True))))
