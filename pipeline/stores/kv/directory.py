"""The folder of a store: its lock, its quota, what is being written in it, and what dead processes left. No
torch.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.errors import UsageError
from pipeline.stores.kv.counters import Counters, Declined
from pipeline.stores.kv.eviction import EvictionFacts, choose_victims
from pipeline.stores.kv.files import Files, used_bytes
from pipeline.stores.kv.index import Index
from pipeline.stores.kv.io_speed import Speeds

_log = logging.getLogger(__name__)
LAYOUT = "v1"
SPEEDS = "speeds.json"
# kept free of entries: a block more of the journal, the speeds, the folders of processes that come
HOUSEKEEPING_BYTES = 32 * 1024


def measured_reading(root: Path) -> float | None:
    """Bytes a second that reading from the store in ``root`` was measured to take; None where nothing was.
    Opens nothing else.
    """
    known = Speeds()
    known.recall(root / LAYOUT / SPEEDS)
    return known.read_bytes_per_second


class StoreDirectory:
    """One process's hold on a store. Entries of other layouts count against the quota but are left alone.

    ``quota_bytes`` None: no limit. Raises UsageError when the folder cannot be a store.
    """

    def __init__(
        self,
        root: Path,
        *,
        quota_bytes: int | None,
        free_floor_bytes: int,
        files: Files,
        clock: Callable[[], float],
        lock_seconds: float,
    ) -> None:
        self.root = root
        self.files = files
        self.clock = clock
        self.counters = Counters()
        self.speeds_path = root / LAYOUT / SPEEDS
        self._quota_bytes = quota_bytes
        self._limit_bytes = None if quota_bytes is None else quota_bytes - HOUSEKEEPING_BYTES
        self._free_floor_bytes = free_floor_bytes
        self._here = root / LAYOUT
        self._entries = self._here / "entries"
        self._staging = self._here / "staging"
        self._mine = self._staging / secrets.token_hex(8)
        self._mutex = threading.RLock()
        self._doomed: list[str] = []
        self.index = Index(self._entries, self._here / "journal", files, self._report)
        self._lock = FileLock(self._here / "lock", timeout=lock_seconds, poll_interval=0.005)
        self._alive = FileLock(self._mine / "lock", timeout=0)
        self._strays_bytes = 0
        self._kept_waiting = False
        try:
            self._begin()
        except OSError as error:
            raise UsageError(
                f"the KV store {root} cannot be used: {error.strerror or error} ({error.filename or root})"
            ) from None
        except Declined:
            raise UsageError(
                f"the KV store {root} is locked by another process for more than {lock_seconds:g} s"
            ) from None

    def _begin(self) -> None:
        for folder in (self.root, self._entries, self._staging):
            self.files.make_folder(folder)
        with self._held_lock():
            self.files.make_folder(self._mine)
            self._alive.acquire()
            self.sweep()
            self.index.rescan()
            self._bury()
            self._strays_bytes = max(0, used_bytes(self.root) - self.used_bytes())
            self.enforce_quota()

    def close(self) -> None:
        """Let go of the folder."""
        with self._mutex, contextlib.suppress(OSError):
            self._alive.release()
            self.files.remove(self._mine)

    @contextmanager
    def exclusive(self) -> Iterator[Index]:
        """Alone among all threads and processes, with an index that is up to date. Raises Declined (busy),
        OSError.
        """
        with self._held_lock():
            self._restore()
            self.index.refresh()
            self._bury()
            yield self.index

    def _restore(self) -> None:
        """Somebody may have deleted the folder, to have its room: what is computed from now on is stored
        again.
        """
        if self._entries.is_dir() and self._mine.is_dir():
            return
        for folder in (self._entries, self._mine):
            self.files.make_folder(folder)
        self._alive.release()
        self._alive.acquire()
        self._strays_bytes = 0

    @contextmanager
    def _held_lock(self) -> Iterator[None]:
        with self._mutex:
            try:
                self._lock.acquire(timeout=0 if self._kept_waiting else None)
            except Timeout:
                # whoever holds it for so long, a stopped process or a dying disk, is not waited for again
                self._kept_waiting = True
                self.counters.warnings["busy"] += 1
                raise Declined(
                    "busy", f"another process holds the lock of the KV store {self.root}"
                ) from None
            self._kept_waiting = False
            try:
                yield
            finally:
                self._lock.release()

    def staging_folder(self) -> Path:
        """A name for what is about to be written; nobody else touches it while this process lives."""
        return self._mine / secrets.token_hex(8)

    def entry_folder(self, entry_id: str) -> Path:
        """Where an entry lies."""
        return self._entries / entry_id

    def used_bytes(self) -> int:
        """On the disk, by everything under the store's folder: old, new, half written or foreign."""
        total = self.index.total_bytes + used_bytes(self._staging) + self._strays_bytes
        for path in (
            self.root,
            self._here,
            self._entries,
            *(path for path in self._here.iterdir() if path.is_file()),
        ):
            with contextlib.suppress(FileNotFoundError):
                facts = path.stat()
                total += max(facts.st_size, 512 * getattr(facts, "st_blocks", 0))
        return total

    def make_room(self, size_bytes: int, newcomer: EvictionFacts, keep: str | None = None) -> None:
        """Evict until ``size_bytes`` may be written. With the lock held. Raises Declined when ``newcomer`` is
        not worth that.
        """
        if self._limit_bytes is not None and size_bytes > self._limit_bytes:
            raise Declined("quota", f"{size_bytes} bytes are more than the quota of {self._quota_bytes}")
        over_bytes, lacking_bytes = self._shortage(size_bytes)
        if max(over_bytes, lacking_bytes) > 0:
            self.sweep()
            over_bytes, lacking_bytes = self._shortage(size_bytes)
        if max(over_bytes, lacking_bytes) <= 0:
            return
        held = [one.facts for entry_id, one in self.index.held.items() if entry_id != keep]
        victims = choose_victims(held, max(over_bytes, lacking_bytes), self.clock(), newcomer)
        if victims is None:
            if lacking_bytes > over_bytes:
                raise Declined(
                    "free_space", f"less than {self._free_floor_bytes} bytes would stay free on the disk"
                )
            raise Declined("worth_less", "what the store holds saves more time for its bytes")
        self._evict(victims)
        over_bytes, _ = self._shortage(size_bytes)
        if over_bytes > 0:
            raise Declined("quota", f"{over_bytes} bytes could not be freed")

    def _shortage(self, size_bytes: int) -> tuple[int, int]:
        """Bytes by which a write would exceed the quota, and by which it would cut into the free-space
        floor.
        """
        over_bytes = 0 if self._limit_bytes is None else self.used_bytes() + size_bytes - self._limit_bytes
        return over_bytes, self._free_floor_bytes + size_bytes - self.files.free_bytes(self._here)

    def enforce_quota(self, keep: str | None = None) -> None:
        """Evict whatever is over the quota (it may have been cut since the last run). With the lock held."""
        over_bytes = 0 if self._limit_bytes is None else self.used_bytes() - self._limit_bytes
        if over_bytes > 0:
            held = [one.facts for entry_id, one in self.index.held.items() if entry_id != keep]
            self._evict(choose_victims(held, over_bytes, self.clock()) or ())

    def _evict(self, victims: Sequence[EvictionFacts]) -> None:
        for facts in victims:
            if self.remove(facts.entry_id):
                self.counters.evicted += 1
                self.counters.evicted_bytes += facts.size_bytes

    def remove(self, entry_id: str) -> bool:
        """Let an entry disappear in one step, then free its bytes; readers that have it open are not
        disturbed. With the lock held.
        """
        gone = self.staging_folder()
        try:
            self.entry_folder(entry_id).rename(gone)
            self.index.changed(entry_id)
            self.files.remove(gone)
        except FileNotFoundError:
            self.index.changed(entry_id)
            return False
        except OSError as error:
            self._report("error", entry_id, str(error))
            return False
        return True

    def condemn(self, entry_id: str, reason: str) -> None:
        """Count an entry as damaged and remove it. With the lock held."""
        self._report("damaged", entry_id, reason)
        self._bury()

    def _bury(self) -> None:
        doomed, self._doomed = self._doomed, []
        for entry_id in doomed:
            self.remove(entry_id)

    def sweep(self) -> None:
        """Remove what processes that are gone were writing. With the lock held."""
        for folder in sorted(self._staging.iterdir()):
            if folder == self._mine:
                continue
            lock = FileLock(folder / "lock", timeout=0)
            try:
                lock.acquire()
            except (Timeout, OSError, NotImplementedError):
                continue
            try:
                if any(path.name != "lock" for path in folder.iterdir()):
                    self._report("orphan", folder.name, "its process is gone")
                with contextlib.suppress(OSError):
                    self.files.remove(folder)
            finally:
                lock.release()

    def _report(self, what: str, entry_id: str, reason: str) -> None:
        self.counters.warnings[what] += 1
        _log.warning("KV store %s: entry %s: %s: %s", self.root, entry_id, what, reason)
        if what == "damaged":
            self._doomed.append(entry_id)
