"""The persisted caches of one loaded model: the KV store, and what else shapes the numbers that lie on it.

A cache may stand for another only where all of that is equal. Attention kernels add up in different orders,
so each has caches of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from pipeline.config import Config
from pipeline.engine.model.loading import LoadedModel
from pipeline.engine.reuse.device_time import devices_of
from pipeline.engine.reuse.prefix_store import PrefixStore
from pipeline.engine.reuse.store_session import StoreSession, open_session
from pipeline.records import Plan

_FORMAT = 1  # of what the engines put; with another number every earlier entry is a stranger


class CacheAccess:
    """See the module."""

    def __init__(self, session: StoreSession, fingerprint: Mapping[str, Any]) -> None:
        self.session = session
        self._fingerprint = fingerprint

    def of(self, attention: str) -> PrefixStore:
        """Caches computed with this attention."""
        return PrefixStore(self.session, {**self._fingerprint, "attention": attention})


def open_cache_access(
    config: Config, plan: Plan, loaded: LoadedModel, weights: Mapping[str, str], say: Callable[[str], None]
) -> tuple[CacheAccess | None, str]:
    """The caches of ``loaded`` and what the store is, in words; None where it is off or its folder cannot be
    used.
    """
    session, told = open_session(config, plan)
    if session is None:
        if config.kv_cache.store.quota:
            say(f"the KV store is {told}")
        return None, told
    session.devices = devices_of(loaded.model)
    return CacheAccess(session, fingerprint_of(plan, loaded, weights)), told


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
