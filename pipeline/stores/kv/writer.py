"""Writing beside the run: one thread, a bounded queue. A write that finds no room in it is skipped, so the
run never waits. What waits is in host memory: what is put from a card is on its way there when ``put``
returns.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import torch

from pipeline.stores.kv.card_outlet import CardOutlet, on_card
from pipeline.stores.kv.counters import Receipt
from pipeline.stores.kv.entry import Entry, Segment
from pipeline.stores.kv.manifest import EntryKind
from pipeline.stores.kv.store import KvStore

_log = logging.getLogger(__name__)
_LEAVING_BYTES = 1 << 27  # on their way from a card, which has better use for its memory


class BackgroundWriter:
    """Puts into ``store`` in the order of the calls. At most ``queued`` writes and ``queued_bytes`` of
    tensors wait.

    The thread is a daemon: a process that ends without ``close`` loses what waits, which the store survives.
    """

    def __init__(self, store: KvStore, *, queued_bytes: int = 1 << 30, queued: int = 16) -> None:
        self._store = store
        self._limit_bytes = queued_bytes
        self._limit = queued
        self._outlet = CardOutlet(min(_LEAVING_BYTES, queued_bytes))
        self._waiting = 0
        self._waiting_bytes = 0
        self._room = threading.Condition()
        self._closed = False
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any], int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="kv-writer", daemon=True)
        self._thread.start()

    def put(
        self,
        entry: Entry,
        segment: Segment,
        *,
        copy: bool = True,
        seconds: Callable[[], float] | None = None,
    ) -> Future[Receipt] | None:
        """See KvStore.put; None if skipped. ``copy`` False: the caller never changes the tensors' memory
        again. ``seconds``: what the entry took, asked for when it is written, which may wait for a card.
        """
        tensors = {**segment.ranges, **segment.states}
        size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        with self._room:
            full = self._waiting >= self._limit or self._waiting_bytes + size_bytes > self._limit_bytes
            if self._closed or full:
                self._store.counters.declined["skipped"] += 1
                return None
        kept, arrived = self._kept(segment, tensors, copy=copy)

        def job() -> Receipt:
            arrived()
            return self._store.put(replace(entry, seconds=seconds()) if seconds else entry, kept)

        return self._enqueue(job, size_bytes)

    def _kept(
        self, segment: Segment, tensors: Mapping[str, torch.Tensor], *, copy: bool
    ) -> tuple[Segment, Callable[[], None]]:
        """What is written in the place of ``segment``, and what waits until it is there."""
        if on_card(tensors):
            home, arrived = self._outlet.brought_home(tensors, copy=copy)
            parts = [{name: home[name] for name in part} for part in (segment.ranges, segment.states)]
            return replace(segment, ranges=parts[0], states=parts[1]), arrived
        if copy:
            segment = replace(segment, ranges=_copied(segment.ranges), states=_copied(segment.states))
        return segment, lambda: None

    def finish_checkpoint(
        self, fingerprint: Mapping[str, Any], owner: Mapping[str, Any], *, become: EntryKind | None = None
    ) -> Future[bool] | None:
        """See KvStore.finish_checkpoint; after the writes that were put before it, and never skipped before
        ``close``.
        """
        if self._closed:
            return None
        return self._enqueue(lambda: self._store.finish_checkpoint(fingerprint, owner, become=become), 0)

    def _enqueue(self, job: Callable[[], Any], size_bytes: int) -> Future[Any]:
        future: Future[Any] = Future()
        with self._room:
            self._waiting += 1
            self._waiting_bytes += size_bytes
        self._jobs.put((job, future, size_bytes))
        return future

    def flush(self, timeout_seconds: float | None = None) -> bool:
        """Wait until everything that was put is on the disk or declined. False: not within the time."""
        with self._room:
            return self._room.wait_for(lambda: self._waiting == 0, timeout_seconds)

    def close(self, timeout_seconds: float | None = None) -> bool:
        """Take nothing more, finish what waits, end the thread. False: not within the time; it then goes on
        until the process ends.
        """
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (taken := self._jobs.get()) is not None:
            self._do(*taken)
            del taken  # the tensors go before the next write is waited for

    def _do(self, job: Callable[[], Any], future: Future[Any], size_bytes: int) -> None:
        try:
            with torch.inference_mode():  # the mode is per thread
                future.set_result(job())
        except Exception as error:  # noqa: BLE001 - whatever a write runs into must not end the run
            _log.warning("a write to the KV store failed: %s", error)
            self._store.counters.warnings["error"] += 1
            self._store.counters.declined["error"] += 1
            future.set_exception(error)
        finally:
            with self._room:
                self._waiting -= 1
                self._waiting_bytes -= size_bytes
                self._room.notify_all()


def _copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """In memory of their own: what is put may be a view of storage that the run goes on writing to."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
