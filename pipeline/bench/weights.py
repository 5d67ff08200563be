"""The backend of a configuration, to be measured in this process: it must load its weights here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from pipeline.config import Config
from pipeline.engine.interface import Backend
from pipeline.engine.model.loading import LoadedModel
from pipeline.engine.model.tokenizer import ChatTokenizer
from pipeline.engine.registry import open_backend
from pipeline.errors import UsageError
from pipeline.records import Plan


@runtime_checkable
class HoldsWeights(Backend, Protocol):
    """A backend whose model can be loaded into this process, under any decoder."""

    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer, with the ids that end an answer and fill a row."""
        ...

    def load(self, plan: Plan, offload_folder: Path, say: Callable[[str], None]) -> LoadedModel:
        """The weights alone, where the plan wants them."""
        ...


def open_weights(config: Config, say: Callable[[str], None]) -> HoldsWeights:
    """The configured backend. Raises UsageError for one that has no weights on this machine, ConfigError."""
    backend = open_backend(config, say)
    if not isinstance(backend, HoldsWeights):
        raise UsageError(
            f"engine.backend {config.engine.backend} loads no weights on this machine, so there is nothing "
            f"to time here; time a whole run instead"
        )
    return backend
