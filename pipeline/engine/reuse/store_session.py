"""The KV store of one worker, open while its model is: the writer beside it, what was measured, what became
of each cache.

Opening is where the configuration is read: a quota of 0 means no store, a folder that cannot be used means
none with a reason.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.config import Config, StoreConfig, store_folder
from pipeline.engine.reuse.device_time import Span, Stopwatch
from pipeline.errors import UsageError
from pipeline.records import Plan
from pipeline.stores.kv.sizes import MOST_QUEUED_BYTES, queued_bytes
from pipeline.stores.kv.store import KvStore
from pipeline.stores.kv.writer import BackgroundWriter

_FLUSH_SECONDS = 60.0
_RECORDED_SECONDS = 10.0  # an answer is in the ledger about a second after it was given
_LONG_TOKENS = (
    512  # while nothing is known of the speed of the model; work that turns out short is then never saved
)
_MEASURED_TOKENS = 64  # less says little about it
_MEMORY = 0.85


@dataclass(slots=True)
class Tally:
    """What became of beginnings of prompts. ``recomputed``: stored, but reading would have taken longer, or
    damaged; ``computed``: not stored; ``shared``: found in memory, where another question had put it.
    ``saved_seconds``: computing what was loaded or shared, less the loading. ``resumed``: loaded from the
    checkpoint of work that was cut off; ``resumed_text_tokens``: of texts that were cut off.
    """

    loaded: int = 0
    shared: int = 0
    recomputed: int = 0
    computed: int = 0
    resumed: int = 0
    resumed_text_tokens: int = 0
    loaded_tokens: int = 0
    computed_tokens: int = 0
    saved_seconds: float = 0.0


class StoreSession:
    """See the module. ``notes`` are sentences for the report, ``devices`` those of the model's weights."""

    def __init__(
        self, store: KvStore, settings: StoreConfig, *, queued_bytes: int = MOST_QUEUED_BYTES
    ) -> None:
        self.store = store
        self.settings = settings
        self.writer = BackgroundWriter(store, queued_bytes=queued_bytes)
        self.tally = Tally()
        self.notes: list[str] = []
        self.devices: tuple[torch.device, ...] = ()
        self._tokens = self._seconds = 0.0
        self._being_read: deque[tuple[int, Span]] = deque()
        self._finished: deque[tuple[float, Mapping[str, Any], Mapping[str, Any]]] = deque()

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """As measured in this process, None before anything was."""
        while self._being_read and self._being_read[0][1].known:
            tokens, took = self._being_read.popleft()
            self._tokens = self._tokens * _MEMORY + tokens
            self._seconds = self._seconds * _MEMORY + took.seconds()
        return self._tokens / self._seconds if self._seconds else None

    def stopwatch(self, device: torch.device) -> Stopwatch:
        """For passes of the model, whose input is on ``device``."""
        return Stopwatch(tuple(dict.fromkeys((device, *self.devices))))

    def computed(self, tokens: int, took: Span) -> None:
        """Note how long it took to read ``tokens``; it counts as soon as it is known."""
        self.tally.computed_tokens += tokens
        if tokens >= _MEASURED_TOKENS:
            self._being_read.append((tokens, took))

    def is_long(self, tokens: int) -> bool:
        """Whether so much work is worth being saved on the way."""
        speed = self.prefill_tokens_per_second
        if speed is None:
            return tokens >= _LONG_TOKENS
        return tokens / speed >= 2 * self.settings.checkpoint_seconds

    def finish_later(self, fingerprint: Mapping[str, Any], owner: Mapping[str, Any]) -> None:
        """Remove the checkpoint of ``owner`` once the answers have had time to be recorded; until then a
        crash can still need it.
        """
        self._finished.append((time.monotonic(), fingerprint, owner))
        self._finish(_RECORDED_SECONDS)

    def _finish(self, after_seconds: float) -> None:
        while self._finished and time.monotonic() - self._finished[0][0] >= after_seconds:
            _, fingerprint, owner = self._finished.popleft()
            self.writer.finish_checkpoint(fingerprint, owner)

    def facts(self) -> dict[str, Any]:
        """Counts and speeds, for the report."""
        speeds = {
            "read_bytes_per_second": self.store.speeds.read_bytes_per_second,
            "write_bytes_per_second": self.store.speeds.write_bytes_per_second,
            "prefill_tokens_per_second": self.prefill_tokens_per_second,
        }
        known = {name: round(value) for name, value in speeds.items() if value is not None}
        tally = {name: getattr(self.tally, name) for name in Tally.__dataclass_fields__}
        return {
            **tally,
            **known,
            **self.store.counters.as_dict(),
            "loaded": self.tally.loaded,
            "notes": list(self.notes),
        }

    def close(self) -> dict[str, Any]:
        """All answers are recorded. Wait for what is being written, within reason; the last facts."""
        self._finish(0)
        self.writer.close(_FLUSH_SECONDS)
        facts = {**self.facts(), "used_bytes": self.store.used_bytes()}
        self.store.close()
        return facts


def open_session(config: Config, plan: Plan) -> tuple[StoreSession | None, str]:
    """The store, and what it is, in words; None where it is off or its folder cannot be used."""
    settings = config.kv_cache.store
    if not settings.quota:
        return None, "off (kv_cache.store.quota is 0)"
    folder = store_folder(config)
    try:
        store = KvStore(
            folder,
            quota_bytes=settings.quota,
            storage_format=settings.format,
            free_floor_bytes=settings.keep_free,
        )
    except UsageError as error:
        return None, f"off: {error}"
    queued = queued_bytes(plan.batch_tokens * plan.kv_bytes_per_token)
    return StoreSession(
        store, settings, queued_bytes=queued
    ), f"{folder}, {settings.format}, documents {settings.documents}"
