"""The workers of a run: started ahead of time or when first needed, started again after a death, each
leased what the routing says.

Whoever asks sees one queue: requests go in, events come out, and which worker had which is told only when
one dies, with what it held.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pipeline import errors
from pipeline.config import Config
from pipeline.errors import DeviceLost, OvernightError, WorkerDied
from pipeline.records import Plan, Request
from pipeline.run.device_proof import made_up
from pipeline.run.protocol import FromWorker, Loaded, Refused, Replies, Says
from pipeline.run.resource_guard import Activity
from pipeline.run.routing import assign
from pipeline.run.worker import Held, StartWorker, Worker
from pipeline.run.worker_process import WorkerProcess
from pipeline.system.run_directory import RunDirectory

_LOAD_TRIES = 2


@dataclass(frozen=True, slots=True)
class Death:
    """A worker with a loaded model has died. ``leased`` was lost with it; ``started`` are the ids of those
    of it that were being computed when it was last heard of. ``by_device``: its graphics card failed.
    """

    worker: int
    reason: str
    leased: tuple[Request, ...]
    started: frozenset[int]
    by_device: bool = False


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """No worker can load the model: what it refused with, or died of more than once."""

    error: OvernightError


Event = Says | Loaded | Replies | Death | LoadFailed


class WorkerPool:
    """``size`` workers, numbered from 0. A context manager: no worker outlives it.

    ``place`` is where their logs are, for messages.
    """

    def __init__(self, start: StartWorker, place: Path, size: int = 1) -> None:
        self._start = start
        self._place = place
        self._size = size
        self._workers: dict[int, Worker] = {}
        self._waiting: dict[int, Request] = {}
        self._events: deque[Event] = deque()
        self._news = threading.Event()
        self._failed_loads = 0
        self._proof: tuple[Request, ...] = ()  # of a card that failed
        self._ended: list[Held] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(at_once=True)

    def call(self) -> None:
        """Start the workers that are missing. They import their libraries beside us and wait for the plan."""
        for number in range(self._size):
            if number not in self._workers:
                self._workers[number] = self._start(number, self._news.set)

    def load(self, plan: Plan) -> None:
        """See that every worker is there and has its model, or is loading it; repeated, costs nothing."""
        self.call()
        for worker in self._workers.values():
            if worker.held.state == "starting":
                self._events.append(Says("loading the model"))
                worker.load(plan, self._proof)

    def admit(self, requests: Sequence[Request]) -> None:
        """Queue requests, and lease what can be leased. They wait while no model is loaded."""
        self._waiting.update((request.request_id, request) for request in requests)
        loaded = {
            number: worker.held.leased.keys()
            for number, worker in self._workers.items()
            if worker.held.state == "loaded"
        }
        for number, leased in assign(list(self._waiting.values()), loaded).items():
            self._workers[number].admit(leased)
            for request in leased:
                del self._waiting[request.request_id]

    def release(self, request_ids: Sequence[int]) -> None:
        """Nobody waits for these any more; unknown ids are fine."""
        for request_id in request_ids:
            self._waiting.pop(request_id, None)
        for worker in self._workers.values():
            worker.release([request_id for request_id in request_ids if request_id in worker.held.leased])

    def collect(self, timeout_seconds: float) -> list[Event]:
        """What has happened since the last call, waiting at most so long for something. Of a worker that has
        died all that it had finished comes first.
        """
        until = time.monotonic() + timeout_seconds
        while True:
            self._news.clear()
            for number, worker in list(self._workers.items()):
                self._hear(number, worker)
            left_seconds = until - time.monotonic()
            if self._events or left_seconds <= 0:
                break
            self._news.wait(left_seconds)
        events, self._events = list(self._events), deque()
        return events

    def sacrifice(self, reason: str) -> None:
        """End a worker that computes, so that its memory is free; ``collect`` tells of its death, and first
        of what it had finished.
        """
        computing = [number for number, worker in self._workers.items() if worker.held.leased]
        for number in computing[:1]:
            self._hear(number, self._workers[number])
            if number in self._workers:  # it may have been dead already
                self._bury(number, reason)

    def close(self, *, at_once: bool) -> None:
        """End all workers: at once, with what they are doing, or as soon as they are idle."""
        for number, worker in list(self._workers.items()):
            worker.close(at_once=at_once)
            self._ended.append(self._workers.pop(number).held)

    @property
    def activity(self) -> Activity:
        """What the workers do at the moment, as far as is known: the most that any of them does."""
        holds = [worker.held for worker in self._workers.values()]
        if any(held.leased for held in holds):  # of what it has begun it may not have spoken yet
            return "computing"
        if any(held.state != "loaded" for held in holds):
            return "loading"
        return "idle" if holds else "nothing"

    @property
    def facts(self) -> dict[str, Any]:
        """Of the workers that have ended: what became of persisted caches (``store``), how long their models
        were there and waited for work (``waiting``), the most that one of them held (``peaks``); each only
        where it is known.
        """
        facts: dict[str, Any] = {}
        told = [held.store_facts for held in self._ended if held.store_facts]
        if told:
            facts["store"] = added_up(told)
        served_seconds = sum(held.served_seconds for held in self._ended)
        if served_seconds:
            waited_seconds = sum(held.waited_seconds for held in self._ended)
            facts["waiting"] = {
                "seconds": round(served_seconds, 3),
                "waited_seconds": round(waited_seconds, 3),
            }
            most = [max(getattr(held, name) for held in self._ended) for name in ("ram_bytes", "vram_bytes")]
            facts["peaks"] = {"ram_bytes": most[0], "vram_bytes": most[1]} if most[0] else {}
        return facts

    def _hear(self, number: int, worker: Worker) -> None:
        try:
            for message in worker.collect():
                self._note(message)
        except WorkerDied as death:
            self._bury(number, str(death))

    def _note(self, message: FromWorker) -> None:
        match message:
            case Loaded():
                self._failed_loads, self._proof = 0, ()
                self._events.append(message)
            case Says() | Replies():
                self._events.append(message)
            case Refused(name, text):
                kind = getattr(errors, name, None)
                if not (isinstance(kind, type) and issubclass(kind, OvernightError)):
                    kind = OvernightError
                self._events.append(LoadFailed(kind(text)))

    def _bury(self, number: int, reason: str) -> None:
        """A dead worker leaves the pool. Without a model nothing is lost but time: another one is tried."""
        worker = self._workers.pop(number)
        worker.close(at_once=True)
        held = worker.held
        self._ended.append(held)
        if held.state == "loaded":
            self._lose(number, held, reason)
            return
        self._failed_loads += 1
        if self._failed_loads >= _LOAD_TRIES:
            self._events.append(LoadFailed(self._load_error(held, reason)))

    def _lose(self, number: int, held: Held, reason: str) -> None:
        leased, started = tuple(held.leased.values()), frozenset(held.started)
        failure = held.device_failure
        self._events.append(Death(number, failure or reason, leased, started, by_device=failure is not None))
        if failure is not None:  # it, or what it was asked: the next worker finds out
            self._proof = made_up([request for request in leased if request.request_id in started] or leased)
        held.let_go([*held.leased])  # else every death of a night would keep the texts of a whole window

    def _load_error(self, held: Held, reason: str) -> OvernightError:
        if held.device_failure is None:
            return OvernightError(f"the model could not be loaded: {reason} (in {self._place})")
        tried = "it failed at made-up prompts, too" if self._proof else "it was tried twice"
        return DeviceLost(
            f"{held.device_failure}; {tried}, so no document is blamed. See what nvidia-smi and the system's "
            f"log say of it; the same command goes on"
        )


def local_workers(config: Config, directory: RunDirectory) -> StartWorker:
    """Workers that are processes of this machine, each with a log and an offload folder of its own."""

    def start(number: int, ring: Any) -> Worker:
        mark = f"-{number}" if number else ""
        log = directory.path / f"worker{mark}.log"
        offload = directory.offload / str(number) if number else directory.offload
        return WorkerProcess(config, log, offload, ring)

    return start


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
