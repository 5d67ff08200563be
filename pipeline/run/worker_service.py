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
from pipeline.records import Generation, Request
from pipeline.run.protocol import (
    Admit,
    Configure,
    DeviceFailed,
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
    """The model under the plan it is told, after it has answered what it is to prove itself with. Raises
    OvernightError, of which DeviceLost is one.
    """
    assert isinstance(message, Load)
    offload_folder = Path(message.offload_folder)
    before_bytes = resident_bytes()
    with failing_disk_stops(offload_folder):
        engine, facts = backend.open_engine(message.plan, offload_folder, lambda text: tell(Says(text)))
    model = LoadedModel(engine, backend, tell, message.plan.cards)
    model.prove(admitted(message))
    tell(Loaded({**facts, "process_bytes": before_bytes}))
    return model


class LoadedModel:
    """An engine that does what it is told. Each message of replies tells how long the model has waited for
    requests since it was loaded and the most memory that was held; now and then one says what became of
    persisted caches. ``cards``: names of the graphics cards that it counts on.
    """

    def __init__(self, engine: Engine, backend: Backend, tell: Tell, cards: Sequence[str] = ()) -> None:
        self._cards = cards
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

    def prove(self, requests: Sequence[Request]) -> None:
        """Work off ``requests``, whose answers nobody wants. Raises DeviceLost."""
        if not requests:
            return
        from pipeline.engine.device_failure import naming_the_device  # with it comes torch

        self._tell(Says("trying the graphics card with made-up prompts"))
        with naming_the_device(self._cards):
            self._engine.admit(requests)
            while not self._engine.idle:
                self._engine.step()

    def waited(self, seconds: float) -> None:
        """So long nothing came and there was nothing to do."""
        self._waited_seconds += seconds

    def step(self) -> None:
        """Compute a little, and tell what finished by it; or that the card failed, and raise."""
        finished = self._stepped()
        if not finished:
            return
        now = time.monotonic()
        served_seconds = now - self._loaded
        peaks = peak_resident_bytes(), peak_card_bytes()
        self._tell(Replies(tuple(finished), self._waited_seconds, served_seconds, *peaks))
        if now - self._told >= _STORE_SECONDS:
            self._told = now
            self._tell(StoreFacts(dict(self._backend.store_facts())))

    def _stepped(self) -> Sequence[Generation]:
        try:
            return self._engine.step()
        except Exception as error:
            from pipeline.engine.device_failure import failure_of, is_device_lost  # with it comes torch

            if is_device_lost(error):
                self._tell(DeviceFailed(failure_of(self._cards, error)))
            raise

    def close(self) -> None:
        """Write what is still to be written; its last words are what became of persisted caches."""
        self._tell(StoreFacts(dict(self._backend.store_facts(close=True))))
