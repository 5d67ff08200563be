"""The KV store: caches put, found by token ids, loaded, and given up when they are worth less than what wants
their place.

Methods answer with a value, a Receipt or None, and count what went wrong: no state of the disk makes them
raise. They may be called from several threads. See the package for what lies where.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pipeline.stores.kv import manifest, prefix_hash
from pipeline.stores.kv.counters import Counters, Declined, Receipt
from pipeline.stores.kv.directory import StoreDirectory
from pipeline.stores.kv.entry import Entry, Found, Loaded, Segment
from pipeline.stores.kv.entry_reader import read_entry
from pipeline.stores.kv.eviction import EvictionFacts
from pipeline.stores.kv.files import Files, is_full
from pipeline.stores.kv.formats import CannotEncode
from pipeline.stores.kv.index import Held, Index, open_files
from pipeline.stores.kv.io_speed import Speeds
from pipeline.stores.kv.manifest import DamagedEntry, EntryKind, File, Manifest, canonical
from pipeline.stores.kv.sizes import StorageFormat
from pipeline.stores.kv.staged_write import StagedWrite
from pipeline.stores.kv.tensor_file import FileLayout
from pipeline.stores.kv.write_plan import WritePlan, full_fingerprint

GIB = 2**30


class KvStore:
    """A store in a folder of its own, ``quota_bytes`` large at most, shared with other processes.

    ``storage_format`` is how this process writes, and the only format that it reads: it is part of the
    fingerprint of each entry. ``free_floor_bytes`` always stay free on the disk. ``clock``: seconds since the
    epoch. ``lock_seconds``: how long to wait for another process before doing without. Raises UsageError when
    the folder cannot be a store.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        quota_bytes: int,
        storage_format: StorageFormat = "as_computed",
        free_floor_bytes: int = GIB,
        files: Files | None = None,
        clock: Callable[[], float] = time.time,
        lock_seconds: float = 10.0,
    ) -> None:
        self.storage_format = storage_format
        self.speeds = Speeds()
        self._files = files or Files()
        self._place = StoreDirectory(
            Path(path),
            quota_bytes=quota_bytes,
            free_floor_bytes=free_floor_bytes,
            files=self._files,
            clock=clock,
            lock_seconds=lock_seconds,
        )
        self._clock = clock
        self.speeds.recall(self._place.speeds_path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counters(self) -> Counters:
        """What happened so far."""
        return self._place.counters

    def used_bytes(self) -> int:
        """On the disk, by all processes and runs."""
        try:
            with self._place.exclusive():
                return self._place.used_bytes()
        except (Declined, OSError) as error:
            self._excuse(error)
            return 0

    def close(self) -> None:
        """Keep the measured speeds for the next run and let go of the folder."""
        try:
            with self._place.exclusive():
                path = self._place.staging_folder()
                content = self.speeds.to_bytes()
                descriptor = self._files.allocate(path, len(content))
                with ExitStack() as stack:
                    stack.callback(os.close, descriptor)
                    self._files.write(descriptor, memoryview(content), 0)
                self._files.publish(path, self._place.speeds_path)
        except (Declined, OSError) as error:
            self._excuse(error)
        self._place.close()

    # Finding and loading

    def lookup(self, ids: Sequence[int], fingerprint: Mapping[str, Any]) -> Found | None:
        """The entry that serves the longest beginning of ``ids``. Pass ``ids[:-1]`` where one token must be
        left to compute.

        Entries without states serve any whole number of blocks of 64 tokens, and all of their tokens;
        ``load`` then uses every token that agrees. Entries with states serve all of their tokens or nothing.
        """
        packed = prefix_hash.pack(ids)
        try:
            with self._place.exclusive() as index:
                best = index.longest(self._scope(fingerprint), packed)
        except (Declined, OSError) as error:
            self._excuse(error)
            best = None
        if best is None:
            self.counters.misses += 1
            return None
        self.counters.hits += 1
        return self._found(*best, packed)

    def find_checkpoint(self, fingerprint: Mapping[str, Any], owner: Mapping[str, Any]) -> Found | None:
        """The checkpoint of ``owner``, whole: how far it got is ``tokens``, its ids and extra come with
        ``load``.
        """
        try:
            with self._place.exclusive() as index:
                held = index.checkpoint(self._scope(fingerprint), owner)
        except (Declined, OSError) as error:
            self._excuse(error)
            return None
        return None if held is None else self._found(held, held.manifest.tokens, None)

    @staticmethod
    def _found(held: Held, tokens: int, packed: bytes | None) -> Found:
        about = held.manifest
        needed = [file.size_bytes for file in about.segments if file.begin < tokens] + (
            [about.state.size_bytes] if about.state else []
        )
        return Found(
            about.entry_id, tokens, about.tokens, sum(needed), about.seconds, about.kind, about.owner, packed
        )

    def load(self, found: Found) -> Loaded | None:
        """All tensors, every byte checked, or None: the entry is gone, or was damaged and is now gone."""
        try:
            with ExitStack() as stack:
                opened = self._open(found, stack)
                if opened is None:
                    return None
                loaded = read_entry(self._files, *opened, found.ids, found.tokens)
        except DamagedEntry as error:
            self._condemn(found.entry_id, str(error))
            return None
        except (Declined, OSError) as error:
            self._excuse(error, "unreadable")
            return None
        self.speeds.read(loaded.bytes_read, loaded.seconds)
        self.counters.loaded += 1
        self.counters.loaded_tokens += loaded.tokens
        self.counters.loaded_bytes += loaded.bytes_read
        return loaded

    def _open(self, found: Found, stack: ExitStack) -> tuple[Manifest, list[tuple[File, int]]] | None:
        with self._place.exclusive() as index:
            held = index.held.get(found.entry_id)
            if (
                held is None
                or held.manifest.tokens < found.tokens
                or (held.manifest.state and held.manifest.tokens != found.tokens)
            ):
                return None  # evicted, or replaced by a later state
            wanted = held.manifest.tokens if found.ids is None else len(found.ids) // prefix_hash.ID_BYTES
            opened = open_files(held, stack, below_tokens=wanted)
            self._files.touch(held.folder / manifest.NAME, self._clock())
            return held.manifest, opened

    def _condemn(self, entry_id: str, reason: str) -> None:
        try:
            with self._place.exclusive():
                self._place.condemn(entry_id, reason)
        except (Declined, OSError) as error:
            self._excuse(error)

    # Putting

    def put(self, entry: Entry, segment: Segment) -> Receipt:
        """Store ``segment`` and what is known of its entry. Returns when it is on the disk, or declined.

        ``segment.begin`` 0: a new entry; a checkpoint replaces an earlier one of its owner. Above 0: the
        checkpoint of the same fingerprint and owner grows, if it ends just there and its ids are the
        beginning of these; else declined as a ``gap``. Raises ValueError for tensors whose shapes contradict
        ``begin`` and ids, TypeError for a fingerprint that is not JSON.
        """
        plan = WritePlan.of(entry, segment, self.storage_format)
        scope = self._scope(entry.fingerprint)
        started = time.perf_counter()
        try:
            with ExitStack() as stack:
                with self._place.exclusive() as index:
                    base = self._base(index, plan, scope)
                    draft = self._draft(plan.manifest(base, self._clock()), plan.layouts)
                    stack.callback(draft.discard)
                    self._reserve(draft, keep=base.manifest.entry_id if base else None)
                draft.write(plan.contents())
                with self._place.exclusive() as index:
                    self._publish(index, base, draft, plan, scope)
        except (Declined, OSError, CannotEncode) as error:
            return self._declined(error)
        self.speeds.wrote(plan.size_bytes, time.perf_counter() - started)
        self.counters.stored += 1
        self.counters.stored_bytes += plan.size_bytes
        return Receipt(draft.about.entry_id)

    def _base(self, index: Index, plan: WritePlan, scope: str) -> Held | None:
        """The entry that is to grow, or None for a new one. Raises Declined."""
        if plan.segment.begin == 0:
            self._refuse_repeated(index, plan, scope)
            return None
        base = index.checkpoint(scope, plan.entry.owner)
        if (
            base is None
            or base.manifest.tokens != plan.segment.begin
            or base.manifest.ids_digest != plan.ids_digest_before
        ):
            raise Declined(
                "gap", f"no checkpoint of this owner ends at {plan.segment.begin} tokens with these ids"
            )
        return base

    def _refuse_repeated(self, index: Index, plan: WritePlan, scope: str) -> None:
        same = None if plan.entry.kind == "checkpoint" else index.same(scope, plan.ids_digest, plan.tokens)
        if same is None:
            return
        if (
            plan.entry.kind == "prefix" and same.manifest.kind == "document"
        ):  # shared after all: it is to stay longer
            self._promote(index, same, "prefix")
        raise Declined("already_stored", "these ids are stored already", same.manifest.entry_id)

    def _draft(self, about: Manifest, layouts: Mapping[str, FileLayout]) -> StagedWrite:
        return StagedWrite(self._files, self._place.staging_folder(), about, layouts, self._clock())

    def _reserve(self, draft: StagedWrite, keep: str | None) -> None:
        about = draft.about
        facts = EvictionFacts(
            about.entry_id,
            about.kind,
            sum(file.size_bytes for file in about.files),
            about.seconds,
            self._clock(),
        )
        self._place.make_room(draft.needed_bytes, facts, keep)
        draft.allocate()

    def _publish(
        self, index: Index, base: Held | None, draft: StagedWrite, plan: WritePlan, scope: str
    ) -> None:
        """Let the draft count, unless the world changed while it was written."""
        entry_id = draft.about.entry_id
        if base is None:
            self._refuse_repeated(index, plan, scope)
            replaced = index.checkpoint(scope, plan.entry.owner) if plan.entry.kind == "checkpoint" else None
            with self._noted(index, entry_id):
                draft.publish_new(self._place.entry_folder(entry_id))
            if replaced:
                self._place.remove(replaced.manifest.entry_id)
        else:
            now = index.held.get(entry_id)
            if now is None or now.manifest != base.manifest:
                raise Declined("gap", "the checkpoint changed while its next segment was written")
            with self._noted(index, entry_id):
                draft.publish_into(base.folder)
                if base.manifest.state:  # no longer the last one
                    self._files.remove(base.folder / base.manifest.state.name)
        self._place.enforce_quota(keep=entry_id)

    @staticmethod
    @contextmanager
    def _noted(index: Index, entry_id: str) -> Iterator[None]:
        """However publishing ends, the index learns what is on the disk now."""
        try:
            yield
        finally:
            index.changed(entry_id)

    def finish_checkpoint(
        self, fingerprint: Mapping[str, Any], owner: Mapping[str, Any], *, become: EntryKind | None = None
    ) -> bool:
        """The owner's document is done: its checkpoint goes, or stays as a ``document``; nothing is written
        again. False: none there.
        """
        try:
            with self._place.exclusive() as index:
                scope = self._scope(fingerprint)
                held = index.checkpoint(scope, owner)
                if held is None:
                    return False
                about = held.manifest
                if (
                    become is None
                    or index.same(scope, about.ids_digest, about.tokens)
                    or not self._promote(index, held, become)
                ):
                    self._place.remove(about.entry_id)
                return True
        except (Declined, OSError) as error:
            self._excuse(error)
            return False

    def _promote(self, index: Index, held: Held, kind: EntryKind) -> bool:
        about = replace(
            held.manifest, kind=kind, extra={} if held.manifest.kind == "checkpoint" else held.manifest.extra
        )
        draft = self._draft(about, {})
        try:
            self._reserve(draft, keep=about.entry_id)
            draft.write({})
            with self._noted(index, about.entry_id):
                draft.publish_into(held.folder)
        except (Declined, OSError) as error:
            self._excuse(error)
            return False
        finally:
            draft.discard()
        return True

    def discard(self, entry_id: str) -> bool:
        """Remove an entry that nobody will ask for again."""
        try:
            with self._place.exclusive() as index:
                return entry_id in index.held and self._place.remove(entry_id)
        except (Declined, OSError) as error:
            self._excuse(error)
            return False

    def _scope(self, fingerprint: Mapping[str, Any]) -> str:
        return canonical(full_fingerprint(fingerprint, self.storage_format))

    def _declined(self, error: Exception) -> Receipt:
        if isinstance(error, Declined):
            self.counters.declined[error.reason] += 1
            return Receipt(error.entry_id, error.reason, str(error))
        if isinstance(error, CannotEncode):
            self.counters.declined["encoding"] += 1
            return Receipt(None, "encoding", str(error))
        reason = "disk_full" if isinstance(error, OSError) and is_full(error) else "error"
        self.counters.declined[reason] += 1
        self._excuse(error)
        return Receipt(None, "disk_full" if reason == "disk_full" else "error", str(error))

    def _excuse(self, error: Exception, what: str = "error") -> None:
        """Count what kept the store from doing its work; a lock that is held elsewhere has been counted."""
        if isinstance(error, OSError):
            self.counters.warnings["disk_full" if is_full(error) else what] += 1
