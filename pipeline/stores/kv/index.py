"""The entries of a store in memory: read from their manifests, kept up by the journal, searched by token ids.
No torch.

All methods that touch the disk are called with the store's lock held, so that what looks half done is what a
dead process left.
"""

from __future__ import annotations

import os
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.stores.kv import manifest, prefix_hash
from pipeline.stores.kv.eviction import EvictionFacts
from pipeline.stores.kv.files import Files, used_bytes
from pipeline.stores.kv.manifest import DamagedEntry, File, Manifest, canonical

_JOURNAL_LIMIT_BYTES = 1 << 20
_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class Held:
    """An entry on the disk: what its manifest says, and what all its files take."""

    manifest: Manifest
    folder: Path
    size_bytes: int
    scope: str

    @property
    def facts(self) -> EvictionFacts:
        """For the choice of victims. The manifest file's time of change is when the entry was last used."""
        about = self.manifest
        try:
            last_used = (self.folder / manifest.NAME).stat().st_mtime
        except OSError:
            last_used = about.created
        return EvictionFacts(about.entry_id, about.kind, self.size_bytes, about.seconds, last_used)


def open_files(held: Held, stack: ExitStack, *, below_tokens: int | None = None) -> list[tuple[File, int]]:
    """Descriptors of the files that count; of segments only those that begin ``below_tokens``. ``stack``
    closes them.

    What happens to the entry after that does not matter to who reads. Raises Damaged, OSError.
    """
    opened = []
    for file in held.manifest.files:
        if below_tokens is not None and file.begin >= below_tokens and file is not held.manifest.state:
            continue
        try:
            descriptor = os.open(held.folder / file.name, os.O_RDONLY)
        except FileNotFoundError:
            raise DamagedEntry(f"{file.name} is missing") from None
        stack.callback(os.close, descriptor)
        if os.fstat(descriptor).st_size != file.size_bytes:
            raise DamagedEntry(f"{file.name} has another size")
        opened.append((file, descriptor))
    return opened


class Index:
    """See the module. ``report`` is told of damage and of orphaned files: (what, entry id, reason)."""

    def __init__(
        self, folder: Path, journal: Path, files: Files, report: Callable[[str, str, str], None]
    ) -> None:
        self.folder = folder
        self.held: dict[str, Held] = {}
        self.total_bytes = 0
        self._journal = journal
        self._files = files
        self._report = report
        self._place = (b"", 0)  # in the journal: what has been read
        self._by_block: dict[tuple[str, bytes], set[str]] = defaultdict(set)
        self._by_digest: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._checkpoints: dict[tuple[str, str], set[str]] = defaultdict(set)

    def rescan(self) -> None:
        """Read every manifest, and start a new journal when the old one is long."""
        self.held, self.total_bytes = {}, 0
        self._by_block.clear()
        self._by_digest.clear()
        self._checkpoints.clear()
        if self._journal_place()[1] > _JOURNAL_LIMIT_BYTES:
            self._files.remove(self._journal)
        self._place = self._journal_place()
        for name in sorted(path.name for path in self.folder.iterdir() if _is_id(path.name)):
            self._read(name)

    def refresh(self) -> None:
        """Take in what other processes changed since the last time."""
        place = self._journal_place()
        if place == self._place:
            return
        if self._place[0] not in (b"", place[0]) or place[1] < self._place[1]:
            self.rescan()
            return
        with self._journal.open("rb") as stream:
            stream.seek(self._place[1])
            changed = stream.read(place[1] - self._place[1])
        self._place = place
        for entry_id in sorted({line.decode("ascii", "replace") for line in changed.splitlines()}):
            self.reread(entry_id)

    def changed(self, entry_id: str) -> None:
        """Tell the other processes, and read the entry again. What others changed was taken in when the lock
        was taken.
        """
        try:
            if not self._place[0]:  # tells this journal from one that takes its place
                self._files.append(self._journal, secrets.token_hex(16).encode() + b"\n")
            self._files.append(self._journal, entry_id.encode() + b"\n")
        except OSError as error:  # the others will find out when they next read all manifests
            self._report("error", entry_id, str(error))
        self._place = self._journal_place()
        self.reread(entry_id)

    def reread(self, entry_id: str) -> None:
        """Forget what is known of an entry and read it again, if it is there."""
        self._forget(entry_id)
        if _is_id(entry_id) and (self.folder / entry_id).exists():
            self._read(entry_id)

    def _journal_place(self) -> tuple[bytes, int]:
        """The journal's first line, which names it, and its length."""
        try:
            with self._journal.open("rb") as stream:
                return stream.readline(), os.fstat(stream.fileno()).st_size
        except FileNotFoundError:
            return b"", 0

    def _read(self, name: str) -> None:
        folder = self.folder / name
        try:
            found = manifest.parse((folder / manifest.NAME).read_bytes(), name)
            self._check_sizes(found, folder)
        except DamagedEntry as error:
            self._report("damaged", name, str(error))
        except (FileNotFoundError, NotADirectoryError):
            self._report("damaged", name, "a file is missing")
        except OSError as error:
            self._report("unreadable", name, str(error))
        else:
            self._sweep(found, folder)
            self._remember(Held(found, folder, used_bytes(folder), found.scope))

    @staticmethod
    def _check_sizes(found: Manifest, folder: Path) -> None:
        for file in found.files:
            if (folder / file.name).stat().st_size != file.size_bytes:
                raise DamagedEntry(f"{file.name} has another size")

    def _sweep(self, found: Manifest, folder: Path) -> None:
        """Remove what a process left that died between publishing a segment and the manifest that would have
        made it count.
        """
        counting = {manifest.NAME, *(file.name for file in found.files)}
        for path in sorted(folder.iterdir()):
            if path.name not in counting:
                self._report("orphan", found.entry_id, path.name)
                try:
                    self._files.remove(path)
                except OSError as error:  # it counts as what it takes; the entry itself is as good as any
                    self._report("error", found.entry_id, str(error))

    def _remember(self, held: Held) -> None:
        about = held.manifest
        self.held[about.entry_id] = held
        self.total_bytes += held.size_bytes
        for table, key in self._places(held):
            table[key].add(about.entry_id)

    def _forget(self, entry_id: str) -> None:
        held = self.held.pop(entry_id, None)
        if held is None:
            return
        self.total_bytes -= held.size_bytes
        for table, key in self._places(held):
            table[key].discard(entry_id)
            if not table[key]:
                del table[key]

    def _places(self, held: Held) -> Iterator[tuple[dict[Any, set[str]], Any]]:
        """The tables, and the keys in them, under which an entry is found."""
        about = held.manifest
        if about.kind == "checkpoint":
            yield self._checkpoints, (held.scope, canonical(about.owner))
        else:
            yield self._by_digest, (held.scope, about.ids_digest)
        for block in set(self._blocks(about)):
            yield self._by_block, (held.scope, block)

    @staticmethod
    def _blocks(about: Manifest) -> Iterator[bytes]:
        """Digests under which the entry is found; b"" stands for the beginning, for what ends before its
        first whole block.
        """
        chain = bytes.fromhex(about.blocks)
        digests = [
            chain[start : start + prefix_hash.DIGEST_BYTES]
            for start in range(0, len(chain), prefix_hash.DIGEST_BYTES)
        ]
        if about.state is None:
            yield from digests  # usable at any of its tokens
        if not digests:
            yield b""
        elif about.state is not None:
            yield digests[-1]

    def longest(self, scope: str, packed: bytes) -> tuple[Held, int] | None:
        """The entry that serves most of the ids, and how many by its digests; of equals, the one with least
        to read.
        """
        chain = prefix_hash.chain(packed)
        for number in range(len(chain), -1, -1):
            known = self._by_block.get((scope, chain[number - 1] if number else b""), ())
            usable = [
                (self._usable(self.held[entry_id], packed, chain[:number]), entry_id) for entry_id in known
            ]
            best = max(
                usable, key=lambda pair: (pair[0], -self.held[pair[1]].size_bytes, pair[1]), default=(0, "")
            )
            if best[0]:
                return self.held[best[1]], best[0]
        return None

    @staticmethod
    def _usable(held: Held, packed: bytes, chain: list[bytes]) -> int:
        """Tokens that ``held``, equal up to the end of ``chain``, can serve for certain."""
        about = held.manifest
        whole = len(chain) * prefix_hash.BLOCK_TOKENS
        ends_here = (
            about.tokens - whole < prefix_hash.BLOCK_TOKENS
            and about.tokens * prefix_hash.ID_BYTES <= len(packed)
        )
        if (
            ends_here
            and prefix_hash.tail(packed[: about.tokens * prefix_hash.ID_BYTES], chain) == about.ids_digest
        ):
            return about.tokens
        return whole if about.state is None else 0

    def same(self, scope: str, ids_digest: str, tokens: int) -> Held | None:
        """A finished entry of exactly these ids."""
        held = [self.held[entry_id] for entry_id in sorted(self._by_digest.get((scope, ids_digest), ()))]
        return next((one for one in held if one.manifest.tokens == tokens), None)

    def checkpoint(self, scope: str, owner: Mapping[str, Any]) -> Held | None:
        """The checkpoint of an owner; the furthest, should there be several."""
        mine = [self.held[entry_id] for entry_id in self._checkpoints.get((scope, canonical(owner)), ())]
        return max(
            mine,
            key=lambda one: (one.manifest.tokens, one.manifest.created, one.manifest.entry_id),
            default=None,
        )


def _is_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None
