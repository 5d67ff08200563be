"""The seam between the worker and a model: admit requests, step, collect what finished."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from pipeline.records import Generation, Request


class Engine(Protocol):
    """Holds one model and works off a queue of requests under its Plan. One engine a process, one thread."""

    def admit(self, requests: Sequence[Request]) -> None:
        """Queue requests. They may be reordered and batched freely: answers do not depend on company."""
        ...

    def step(self) -> Sequence[Generation]:
        """Do the next piece of work and return what finished by it, possibly nothing. Out of memory is handled inside (the batch
        is halved); a request that does not fit alone comes back as a Generation with error ``out_of_memory``."""
        ...

    def release(self, request_ids: Collection[int]) -> None:
        """Forget queued requests; unknown ids are fine."""
        ...

    @property
    def idle(self) -> bool:
        """True when nothing is queued or running."""
        ...
