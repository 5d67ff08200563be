"""The seams around a model: a backend says what it is, an engine answers requests under a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pipeline.planner.budget import Wish
from pipeline.planner.model.shape import ModelShape
from pipeline.prompts import Tokenizer
from pipeline.records import Generation, Plan, Request
from pipeline.system.hardware import Hardware


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


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a backend knows of its model before a weight is read.

    ``context_tokens`` is the longest prompt and answer together that the model reads. ``shape``: what its
    weights, cache and activations take; None where they are not on this machine.
    ``cannot_plan``: why memory and time are not predicted, a sentence; None where ``shape`` is certain.
    ``stored_dtype``: numbers of the weight files. ``stored_as``: their quantization where we know it;
    ``stored_quantized``: whether they are quantized at all.
    """

    context_tokens: int
    shape: ModelShape | None = None
    cannot_plan: str | None = None
    stored_dtype: str | None = None
    stored_as: Literal["nf4", "int8"] | None = None
    stored_quantized: bool = False


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan is asked for: ``resolved`` holds what ``auto`` means (dtype, layout), ``machine`` what is
    there, ``wish`` what the configuration and the documents ask for.
    """

    resolved: Mapping[str, Any]
    machine: Hardware
    wish: Wish


class Backend(Protocol):
    """A kind of model, made of a configuration and of ``say``, which hears what takes long. The runner asks
    it for everything but weights; only the worker opens an engine.
    """

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template."""
        ...

    def identity(self) -> Mapping[str, Any]:
        """What makes this model this model, which enters every fingerprint: ``weights`` (a mapping of their
        digests) and ``tokenizer``; ``id`` and ``revision`` where there are none of these.
        """
        ...

    def resolve(self) -> Mapping[str, str]:
        """What ``auto`` means on this machine: ``dtype`` and ``attention``."""
        ...

    def facts(self) -> ModelFacts:
        """The model's shape as far as it matters here; see ModelFacts. Raises ConfigError."""
        ...

    def plan(self, request: PlanRequest) -> Plan:
        """The frozen plan that ``open_engine`` will get. Of the documents it may depend on the longest row
        alone. Raises DoesNotFit or ConfigError.
        """
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
