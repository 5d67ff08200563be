"""A worker as the pool sees it, wherever it is: a process here, this very process, one on another machine.

A worker holds one model and leases: requests that were handed to it and are neither answered nor released.
When it dies, its leases are lost with it, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pipeline.records import Plan, Request
from pipeline.run.protocol import DeviceFailed, FromWorker, Loaded, Replies, Started, StoreFacts

State = Literal["starting", "loading", "loaded"]
"""Of a worker's model: nobody has asked for it yet, it is on its way, it is there."""


@dataclass(slots=True)
class Held:
    """What a worker holds, as far as it has said.

    ``leased`` are its requests by id, ``started`` the ids of those it was computing when last heard of. Of
    ``served_seconds`` since its model was loaded it has waited ``waited_seconds`` for requests; the bytes
    are the most it has held. ``device_failure`` is what its graphics card said when it failed.
    """

    state: State = "starting"
    leased: dict[int, Request] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    store_facts: Mapping[str, Any] = field(default_factory=dict)
    waited_seconds: float = 0.0
    served_seconds: float = 0.0
    ram_bytes: int = 0
    vram_bytes: int = 0
    device_failure: str | None = None

    @property
    def owes(self) -> bool:
        """Whether something is to come from it: its model or answers."""
        return bool(self.leased) or self.state == "loading"

    def lease(self, requests: Sequence[Request]) -> None:
        """It is handed ``requests``."""
        self.leased.update((request.request_id, request) for request in requests)

    def let_go(self, request_ids: Sequence[int]) -> None:
        """It holds these no more; unknown ids are fine."""
        for request_id in request_ids:
            self.leased.pop(request_id, None)
            self.started.discard(request_id)

    def hear(self, message: FromWorker) -> None:
        """What a message changes."""
        match message:
            case Loaded():
                self.state = "loaded"
            case Started(request_ids):
                self.started.update(self.leased.keys() & set(request_ids))
            case Replies(generations, waited_seconds, served_seconds, ram_bytes, vram_bytes):
                self.let_go([generation.request_id for generation in generations])
                self.waited_seconds, self.served_seconds = waited_seconds, served_seconds
                self.ram_bytes, self.vram_bytes = ram_bytes, vram_bytes
            case StoreFacts(facts):
                self.store_facts = facts
            case DeviceFailed(text):
                self.device_failure = text


class Worker(Protocol):
    """One worker. Nothing here waits, but for ``close``; a death is told by ``collect`` alone."""

    held: Held

    def load(self, plan: Plan, proof: Sequence[Request] = ()) -> None:
        """Have it load the model, once, and ask it ``proof`` before it counts as loaded; the answers are
        nobody's.
        """
        ...

    def admit(self, requests: Sequence[Request]) -> None:
        """Lease requests to it; its model is loaded."""
        ...

    def release(self, request_ids: Sequence[int]) -> None:
        """Nobody waits for these any more; unknown ids are fine."""
        ...

    def collect(self) -> Sequence[FromWorker]:
        """What it has said since the last call, already counted in ``held``.

        Raises WorkerDied once all that it said has been collected: it ended, or owed something and was
        silent for too long. ``held`` stays as it was then.
        """
        ...

    def close(self, *, at_once: bool = False) -> None:
        """End it: when it has written what is still to be written or, ``at_once``, with what it is doing."""
        ...


StartWorker = Callable[[int, Callable[[], None]], Worker]
"""Start the worker of a number, counted from 0; the function that it is given is to be called, from any
thread, when there is something to collect.
"""
