"""What a put is going to write: the files, their layouts and the manifest, all known before the first
byte.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.stores.kv import formats, prefix_hash
from pipeline.stores.kv.entry import Entry, Segment
from pipeline.stores.kv.formats import Coded
from pipeline.stores.kv.index import Held
from pipeline.stores.kv.manifest import Manifest
from pipeline.stores.kv.sizes import StorageFormat
from pipeline.stores.kv.staged_write import planned_file
from pipeline.stores.kv.tensor_file import IDS, FileLayout, FilePart


def full_fingerprint(fingerprint: Mapping[str, Any], storage_format: StorageFormat) -> dict[str, Any]:
    """What must be equal for one cache to stand for another: the caller's, and how numbers are stored."""
    return {**fingerprint, "storage_format": storage_format}


@dataclass(frozen=True)
class WritePlan:
    """See the module. ``packed``: the ids as they are stored."""

    entry: Entry
    segment: Segment
    storage_format: StorageFormat
    packed: bytes
    coded: Mapping[str, Coded]
    layouts: Mapping[str, FileLayout]

    @classmethod
    def of(cls, entry: Entry, segment: Segment, storage_format: StorageFormat) -> WritePlan:
        """Raises ValueError for shapes, names or dtypes that cannot be."""
        _check_shapes(entry, segment)
        tensors = (*segment.ranges.items(), *segment.states.items())
        coded = {name: Coded.of(name, tensor, storage_format) for name, tensor in tensors}
        begin, end = segment.begin, len(entry.ids)
        ids_part = FilePart(IDS, "I32", (end - begin,))
        layouts = {_segment_name(begin, end): _layout([coded[name] for name in segment.ranges], [ids_part])}
        if segment.states:
            layouts[_state_name(end)] = _layout([coded[name] for name in segment.states], [])
        return cls(entry, segment, storage_format, prefix_hash.pack(entry.ids), coded, layouts)

    @property
    def tokens(self) -> int:
        """All that the entry will have seen."""
        return len(self.entry.ids)

    @property
    def size_bytes(self) -> int:
        """Of the new tensor files."""
        return sum(layout.size_bytes for layout in self.layouts.values())

    @property
    def ids_digest(self) -> str:
        """Of all ids."""
        return _ids_digest(self.packed)

    @property
    def ids_digest_before(self) -> str:
        """Of the ids before this segment."""
        return _ids_digest(self.packed[: self.segment.begin * prefix_hash.ID_BYTES])

    def manifest(self, base: Held | None, now: float) -> Manifest:
        """Of a new entry, or of ``base`` grown by this segment; without checksums."""
        begin, end = self.segment.begin, self.tokens
        name, state_name = _segment_name(begin, end), _state_name(end)
        added = planned_file(name, begin, end, self.layouts[name])
        state = (
            planned_file(state_name, end, end, self.layouts[state_name])
            if state_name in self.layouts
            else None
        )
        return Manifest(
            entry_id=base.manifest.entry_id if base else secrets.token_hex(16),
            kind=self.entry.kind,
            fingerprint=full_fingerprint(self.entry.fingerprint, self.storage_format),
            tokens=end,
            ids_digest=self.ids_digest,
            blocks=b"".join(prefix_hash.chain(self.packed)).hex(),
            layer_kinds=tuple(self.entry.layer_kinds),
            owner=dict(self.entry.owner),
            extra=dict(self.entry.extra),
            seconds=float(self.entry.seconds),
            created=base.manifest.created if base else now,
            segments=(*(base.manifest.segments if base else ()), added),
            state=state,
        )

    def contents(self) -> dict[str, Iterator[tuple[str, memoryview]]]:
        """The bytes of each file, tensor by tensor: each is encoded when its turn comes. The iterators raise
        CannotEncode.
        """
        return dict(zip(self.layouts, (self._range_parts(), self._parts(self.segment.states)), strict=False))

    def _range_parts(self) -> Iterator[tuple[str, memoryview]]:
        yield IDS, memoryview(self.packed)[self.segment.begin * prefix_hash.ID_BYTES :]
        yield from self._parts(self.segment.ranges)

    def _parts(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, memoryview]]:
        for name, tensor in tensors.items():
            for part, data in zip(
                self.coded[name].parts(), formats.encode(tensor, self.coded[name]), strict=True
            ):
                yield part.name, formats.as_bytes(data)


def _segment_name(begin: int, end: int) -> str:
    return f"{begin:09}-{end:09}.safetensors"


def _state_name(end: int) -> str:
    return f"state-{end:09}.safetensors"


def _ids_digest(packed: bytes) -> str:
    return prefix_hash.tail(packed, prefix_hash.chain(packed))


def _layout(coded: Sequence[Coded], more: Sequence[FilePart]) -> FileLayout:
    parts = [part for one in coded for part in one.parts()]
    return FileLayout.of(
        [*more, *parts], {"tensors": [[one.name, list(one.shape), one.dtype, one.encoding] for one in coded]}
    )


def _check_shapes(entry: Entry, segment: Segment) -> None:
    tokens = len(entry.ids) - segment.begin
    if segment.begin < 0 or tokens <= 0:
        raise ValueError(f"a segment from token {segment.begin} of {len(entry.ids)} holds nothing")
    if segment.begin and entry.kind != "checkpoint":
        raise ValueError(f"only checkpoints grow; a {entry.kind} is put whole")
    for name, tensor in segment.ranges.items():
        if tensor.dim() < 2 or tensor.shape[-2] != tokens:
            raise ValueError(f"tensor {name} of shape {tuple(tensor.shape)} is not (..., {tokens}, width)")
    if IDS in segment.ranges or segment.ranges.keys() & segment.states.keys():
        raise ValueError("a tensor's name is taken: 'ids', or one that is both a range and a state")
