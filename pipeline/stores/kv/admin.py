"""What ``overnight cache`` shows and does: list, verify, prune. Works beside runs that use the store. No
torch.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.errors import StoppedEarly, UsageError
from pipeline.stores.kv import tensor_file
from pipeline.stores.kv.counters import Counters, Declined
from pipeline.stores.kv.directory import LAYOUT, StoreDirectory
from pipeline.stores.kv.eviction import choose_victims
from pipeline.stores.kv.files import Files
from pipeline.stores.kv.index import Held, open_files
from pipeline.stores.kv.manifest import DamagedEntry, EntryKind


@dataclass(frozen=True)
class Listed:
    """One entry. ``seconds``: what computing it took. ``problem``: why it was found damaged, by
    ``verify``.
    """

    entry_id: str
    kind: EntryKind
    tokens: int
    size_bytes: int
    seconds: float
    created: float
    last_used: float
    segments: int
    storage_format: str
    fingerprint: Mapping[str, Any]
    owner: Mapping[str, Any]
    problem: str | None = None


@dataclass(frozen=True)
class Inspected:
    """``entries``: listed, verified or pruned. ``used_bytes``: what is on the disk afterwards. ``warnings``:
    damage found, by kind.
    """

    entries: tuple[Listed, ...]
    used_bytes: int
    warnings: Mapping[str, int]


def ls(path: str | Path) -> Inspected:
    """All entries, last used first. Raises UsageError where no store is, StoppedEarly when it stays
    locked.
    """
    with _opened(path) as place, place.exclusive() as index:
        entries = sorted(
            (_listed(held) for held in index.held.values()), key=lambda one: (-one.last_used, one.entry_id)
        )
        return _inspected(place, entries)


def verify(path: str | Path) -> Inspected:
    """Read every byte of every entry; damaged ones are removed and shown with their problem. Raises as
    ``ls``.
    """
    with _opened(path) as place:
        with place.exclusive() as index:
            names = sorted(index.held)
        entries = [shown for name in names if (shown := _verified(place, name)) is not None]
        with place.exclusive():
            return _inspected(place, entries)


def prune(
    path: str | Path,
    *,
    to_bytes: int | None = None,
    unused_seconds: float | None = None,
    kinds: Collection[EntryKind] | None = None,
    now: float | None = None,
) -> Inspected:
    """Remove entries and return them: those of ``kinds`` (None: all) that nobody used for ``unused_seconds``,
    and then, least worth first, as many as it takes for the store to use at most ``to_bytes``. With neither
    limit, all of ``kinds``. Raises as ``ls``.
    """
    now = time.time() if now is None else now
    with _opened(path) as place, place.exclusive() as index:
        eligible = [held for held in index.held.values() if kinds is None or held.manifest.kind in kinds]
        chosen = [
            held
            for held in eligible
            if unused_seconds is not None and now - held.facts.last_used >= unused_seconds
        ]
        if unused_seconds is None and to_bytes is None:
            chosen = eligible
        if to_bytes is not None:
            rest = [held.facts for held in eligible if held not in chosen]
            over_bytes = place.used_bytes() - sum(held.size_bytes for held in chosen) - to_bytes
            chosen += [index.held[facts.entry_id] for facts in choose_victims(rest, over_bytes, now) or ()]
        shown = [_listed(held) for held in chosen]
        return _inspected(place, [one for one in shown if place.remove(one.entry_id)])


@contextmanager
def _opened(path: str | Path) -> Iterator[StoreDirectory]:
    root = Path(path)
    if not (root / LAYOUT / "entries").is_dir():
        raise UsageError(f"there is no KV store in {root}")
    place = StoreDirectory(
        root, quota_bytes=None, free_floor_bytes=0, files=Files(), clock=time.time, lock_seconds=10.0
    )
    try:
        yield place
    except Declined as error:
        raise StoppedEarly(f"{error}; try again") from None
    finally:
        place.close()


def _inspected(place: StoreDirectory, entries: list[Listed]) -> Inspected:
    counters: Counters = place.counters
    return Inspected(tuple(entries), place.used_bytes(), dict(counters.warnings))


def _listed(held: Held) -> Listed:
    about = held.manifest
    return Listed(
        entry_id=about.entry_id,
        kind=about.kind,
        tokens=about.tokens,
        size_bytes=held.size_bytes,
        seconds=about.seconds,
        created=about.created,
        last_used=held.facts.last_used,
        segments=len(about.segments),
        storage_format=str(about.fingerprint.get("storage_format")),
        fingerprint=about.fingerprint,
        owner=about.owner,
    )


def _verified(place: StoreDirectory, entry_id: str) -> Listed | None:
    """The entry as it was found, or None if it went meanwhile."""
    with ExitStack() as stack:
        with place.exclusive() as index:  # opened files stay readable whatever happens to the entry
            held = index.held.get(entry_id)
            if held is None:
                return None
            shown = _listed(held)
            try:
                opened = open_files(held, stack)
            except (DamagedEntry, OSError) as error:
                place.condemn(entry_id, str(error))
                return replace(shown, problem=str(error))
        try:
            for file, descriptor in opened:
                tensor_file.check(place.files, descriptor, file.header_bytes, file.checksum)
        except (DamagedEntry, OSError) as error:
            with place.exclusive():
                place.condemn(entry_id, str(error))
            return replace(shown, problem=str(error))
    return shown
