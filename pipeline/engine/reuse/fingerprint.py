"""The persisted caches of one loaded model: the shelf, and what else shapes the numbers that lie on it.

A cache may stand for another only where all of that is equal. Attention kernels add up in different orders,
so each has caches of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from pipeline.config import Config
from pipeline.engine.model.loading import LoadedModel
from pipeline.engine.reuse.prefix_store import Reuse
from pipeline.engine.reuse.store_session import Shelf, open_shelf
from pipeline.records import Plan

_FORMAT = 1  # of what the engines put; with another number every earlier entry is a stranger


class Caches:
    """See the module."""

    def __init__(self, shelf: Shelf, fingerprint: Mapping[str, Any]) -> None:
        self.shelf = shelf
        self._fingerprint = fingerprint

    def of(self, attention: str) -> Reuse:
        """Caches computed with this attention."""
        return Reuse(self.shelf, {**self._fingerprint, "attention": attention})


def open_caches(
    config: Config, plan: Plan, loaded: LoadedModel, weights: Mapping[str, str], say: Callable[[str], None]
) -> tuple[Caches | None, str]:
    """The caches of ``loaded`` and what the store is, in words; None where it is off or its folder cannot be
    used.
    """
    shelf, told = open_shelf(config, plan)
    if shelf is None:
        if config.kv_cache.store.quota:
            say(f"the KV store is {told}")
        return None, told
    return Caches(shelf, fingerprint_of(plan, loaded, weights)), told


def fingerprint_of(plan: Plan, loaded: LoadedModel, weights: Mapping[str, str]) -> dict[str, Any]:
    """All that shapes keys and values, but for the attention: weights and their configuration, numbers,
    device, library.
    """
    text = loaded.model.config.get_text_config()
    return {
        "format": _FORMAT,
        "weights": dict(weights),
        "quantization": plan.quantization,
        "dtype": plan.dtype,
        "rope": repr(getattr(text, "rope_parameters", None)),
        "device": loaded.input_device.type,
        "transformers": version("transformers"),
    }
