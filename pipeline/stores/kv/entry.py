"""What goes into the store and comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pipeline.stores.kv.manifest import EntryKind


@dataclass(frozen=True)
class Entry:
    """What is known of a cache apart from its tensors.

    ``fingerprint``: all that shapes the numbers (model, revision, quantization, dtype, attention, rope ...),
    as JSON values; two caches can stand for each other only if it is equal. ``ids``: all token ids that the
    cache has seen, from the first one on. ``seconds``: what computing the cache took in all: its value.
    ``owner``: compared and handed back, nothing else; a checkpoint is found by it. ``extra``: any JSON,
    handed back (of a checkpoint: tokens decoded so far).
    """

    fingerprint: Mapping[str, Any]
    kind: EntryKind
    ids: Sequence[int]
    seconds: float
    layer_kinds: Sequence[str] = ()
    owner: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Segment:
    """Tensors of the tokens from ``begin`` to the end of the entry's ids, of one row (no batch dimension).

    ``ranges``: something for each token: (..., end - begin, width), such as ``L3.k`` and ``L3.v`` of full
    attention. ``states``: whole as of the last token: recurrent states, or the columns that a sliding window
    keeps. They replace those of earlier segments, and an entry that has any can be continued only from its
    end. Names that end in ``.k`` and ``.v`` may be stored in a lossy format; anything else is kept bit for
    bit.
    """

    begin: int
    ranges: Mapping[str, torch.Tensor]
    states: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """An entry that can serve the first ``tokens`` ids that were asked for, or slightly more; nothing has
    been read yet.

    ``bytes_to_read`` and ``tokens`` are for ``speed.worth_loading``.
    """

    entry_id: str
    tokens: int
    entry_tokens: int
    bytes_to_read: int
    entry_seconds: float
    kind: EntryKind
    owner: Mapping[str, Any]
    ids: bytes | None  # what was asked for, int32; None: the entry as it is

    @property
    def compute_seconds(self) -> float:
        """What computing these tokens took, as their share of the entry's tokens."""
        return self.entry_seconds * self.tokens / self.entry_tokens


@dataclass(frozen=True)
class Loaded:
    """Tensors as of ``tokens`` ids, on the CPU, each with storage of its own; ``ids`` are those the cache has
    seen.

    ``ranges``: (..., tokens, width); ``states``: as they were put.
    """

    tokens: int
    ids: tuple[int, ...]
    ranges: Mapping[str, torch.Tensor]
    states: Mapping[str, torch.Tensor]
    layer_kinds: tuple[str, ...]
    extra: Mapping[str, Any]
    bytes_read: int
    seconds: float
