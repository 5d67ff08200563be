"""Writing beside the run: one thread, a bounded queue. A write that finds no room in it is skipped, so the
run never waits.
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

from pipeline.stores.kv.counters import Receipt
from pipeline.stores.kv.entry import Entry, Segment
from pipeline.stores.kv.manifest import EntryKind
from pipeline.stores.kv.store import KvStore

_log = logging.getLogger(__name__)


class BackgroundWriter:
    """Puts into ``store`` in the order of the calls. At most ``queued`` writes and ``queued_bytes`` of
    tensors wait.

    The thread is a daemon: a process that ends without ``close`` loses what waits, which the store survives.
    """

    def __init__(self, store: KvStore, *, queued_bytes: int = 1 << 30, queued: int = 16) -> None:
        self._store = store
        self._limit_bytes = queued_bytes
        self._limit = queued
        self._waiting = 0
        self._waiting_bytes = 0
        self._room = threading.Condition()
        self._closed = False
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any], int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="kv-writer", daemon=True)
        self._thread.start()

    def put(self, entry: Entry, segment: Segment, *, copy: bool = True) -> Future[Receipt] | None:
        """See KvStore.put; None if skipped. ``copy`` False: the caller never changes the tensors' memory
        again.
        """
        tensors = (*segment.ranges.values(), *segment.states.values())
        size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        with self._room:
            full = self._waiting >= self._limit or self._waiting_bytes + size_bytes > self._limit_bytes
            if self._closed or full:
                self._store.counters.declined["skipped"] += 1
                return None
        kept = (
            replace(segment, ranges=_copied(segment.ranges), states=_copied(segment.states))
            if copy
            else segment
        )
        return self._enqueue(lambda: self._store.put(entry, kept), size_bytes)

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
    """On the CPU, in memory of their own: what is put may be a view of storage that the run goes on writing
    to.
    """
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
