"""The seams around a model: a backend says what it is, an engine answers requests under a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pipeline.prompts import Tokenizer
from pipeline.records import Generation, Plan, Request


class Listener(Protocol):
    """Who wants to know what an engine is doing while a step lasts."""

    def started(self, request_ids: Sequence[int]) -> None:
        """Work on these requests begins now; if the process dies, they are the suspects."""
        ...

    def pulse(self) -> None:
        """A forward pass has ended: the engine is alive. Called often; must be cheap."""
        ...


class Engine(Protocol):
    """Holds one model and works off a queue of requests under its Plan. One engine a process, one thread."""

    listener: Listener | None

    def admit(self, requests: Sequence[Request]) -> None:
        """Queue requests. They may be reordered and batched freely: answers do not depend on company."""
        ...

    def step(self) -> Sequence[Generation]:
        """Do the next piece of work and return what finished by it, possibly nothing.

        Out of memory is handled inside (the batch is halved); a request that does not fit alone comes back as
        a Generation with error ``out_of_memory``.
        """
        ...

    def release(self, request_ids: Collection[int]) -> None:
        """Forget queued requests; unknown ids are fine."""
        ...

    @property
    def idle(self) -> bool:
        """True when nothing is queued or running."""
        ...


class Backend(Protocol):
    """A kind of model. The runner asks it for everything but weights; only the worker opens an engine."""

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template."""
        ...

    def identity(self) -> Mapping[str, Any]:
        """What makes this model this model: ids, revision, weights and tokenizer digests; enters every
        fingerprint.
        """
        ...

    def resolve(self) -> Mapping[str, str]:
        """What ``auto`` means on this machine: ``dtype`` and ``attention``."""
        ...

    def model_config(self) -> Mapping[str, Any]:
        """The model's configuration (config.json), for the planner."""
        ...

    def open_engine(
        self, plan: Plan, offload_folder: Path, say: Callable[[str], None]
    ) -> tuple[Engine, Mapping[str, Any]]:
        """Load the weights; returns the engine and facts for the report (device map, weight bytes, peak while
        loading, ...).
        """
        ...

    def store_facts(self, *, close: bool = False) -> Mapping[str, Any]:
        """What became of persisted caches since the engine was opened; empty without a store.

        With ``close`` what is being written is finished first, and the store is let go.
        """
        ...
