"""The manifest: the small JSON file that makes an entry's segments count. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pipeline.records import digest

FORMAT = 1
NAME = "manifest.json"
EntryKind = Literal["prefix", "document", "checkpoint"]
KINDS: tuple[EntryKind, ...] = ("prefix", "document", "checkpoint")


class DamagedEntry(Exception):
    """A file of the store is not what was written. Ends as a miss and a counted warning; never leaves the
    store.
    """


def canonical(value: Mapping[str, Any]) -> str:
    """One text for equal JSON values, whatever the order of their keys. Raises TypeError or ValueError for
    what is not JSON.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class File:
    """One safetensors file of an entry: tokens ``begin`` to ``end``; ``checksum`` is of its header, which
    holds the tensors' own.
    """

    name: str
    begin: int
    end: int
    size_bytes: int
    header_bytes: int
    checksum: str


@dataclass(frozen=True)
class Manifest:
    """See the module and ``values.Entry``. ``blocks`` and ``ids_digest`` are of ``blocks.chain`` and
    ``blocks.tail``.
    """

    entry_id: str
    kind: EntryKind
    fingerprint: Mapping[str, Any]
    tokens: int
    ids_digest: str
    blocks: str
    layer_kinds: tuple[str, ...]
    owner: Mapping[str, Any]
    extra: Mapping[str, Any]
    seconds: float
    created: float
    segments: tuple[File, ...]
    state: File | None

    @property
    def files(self) -> tuple[File, ...]:
        """All files that count."""
        return (*self.segments, self.state) if self.state else self.segments

    @property
    def scope(self) -> str:
        """What must be equal for one cache to stand for another."""
        return canonical(self.fingerprint)

    def to_bytes(self) -> bytes:
        """JSON that carries its own digest."""
        body = {**vars(self), "format": FORMAT, "segments": [vars(file) for file in self.segments]}
        body["state"] = vars(self.state) if self.state else None
        return canonical({**body, "digest": digest(canonical(body))}).encode()

    def with_checksums(self, checksums: Mapping[str, str]) -> Manifest:
        """The same with the checksums of the named files filled in."""

        def filled(file: File) -> File:
            return replace(file, checksum=checksums.get(file.name, file.checksum))

        return replace(
            self, segments=tuple(map(filled, self.segments)), state=filled(self.state) if self.state else None
        )


def parse(data: bytes, entry_id: str) -> Manifest:
    """The manifest of the entry that lies under ``entry_id``. Raises Damaged."""
    try:
        body = json.loads(data)
        stated = body.pop("digest")
        if stated != digest(canonical(body)):
            raise DamagedEntry("its manifest's digest differs")
        if body.pop("format") != FORMAT:
            raise DamagedEntry("its manifest is of another format")
        body["segments"] = tuple(File(**file) for file in body["segments"])
        body["state"] = File(**body["state"]) if body["state"] else None
        body["layer_kinds"] = tuple(body["layer_kinds"])
        found = Manifest(**body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedEntry(f"its manifest cannot be read ({type(error).__name__})") from None
    if found.entry_id != entry_id:
        raise DamagedEntry(f"its manifest is that of entry {found.entry_id}")
    return found
