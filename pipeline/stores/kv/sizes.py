"""How many bytes a stored cache takes, before it exists: for plans and for the quota. No torch.

The lossy formats follow KIVI (Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache",
ICML 2024): keys have a few channels that are far larger than the rest, in all tokens, so keys are scaled per
channel (over ``KEY_GROUP_TOKENS`` tokens); values have none, so they are scaled per token (over
``VALUE_GROUP_CHANNELS`` channels). Unlike there, no recent tokens are kept in full precision: a stored cache
is at rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

StorageFormat = Literal["as_computed", "fp16", "bf16", "int8", "int4"]
FORMATS: tuple[StorageFormat, ...] = ("as_computed", "fp16", "bf16", "int8", "int4")
# Of what waits to be written: at most, at least, and of the memory that a batch may take.
MOST_QUEUED_BYTES, _LEAST_QUEUED_BYTES, _QUEUED_SHARE = 1 << 30, 1 << 26, 4
KEY_GROUP_TOKENS = 64
VALUE_GROUP_CHANNELS = 64
_GROUP_BYTES = 4  # a step and a lowest value in float16
_HEADER_BYTES_PER_TENSOR = 170
_BYTES_PER_FILE = 320
_MANIFEST_BYTES = 1600


def codes_width(width: int, storage_format: StorageFormat) -> int:
    """Bytes that ``width`` codes of a token take: two codes a byte in int4."""
    return -(-width // 2) if storage_format == "int4" else width


def tensor_bytes(
    shape: Sequence[int],
    element_bytes: int,
    storage_format: StorageFormat,
    role: Literal["key", "value", "other"],
) -> int:
    """Stored bytes of one tensor (..., tokens, width) whose elements have ``element_bytes``, without its
    entry in the header.
    """
    *heads, tokens, width = shape if len(shape) >= 2 else (1, math.prod(shape))
    rows = math.prod(heads)
    if role == "other" or storage_format == "as_computed" or len(shape) < 2:
        return rows * tokens * width * element_bytes
    if storage_format in ("fp16", "bf16"):
        return rows * tokens * width * 2
    groups = (
        -(-tokens // KEY_GROUP_TOKENS) * width
        if role == "key"
        else tokens * -(-width // VALUE_GROUP_CHANNELS)
    )
    return rows * (tokens * codes_width(width, storage_format) + groups * _GROUP_BYTES) + 4


def entry_bytes(
    layers: Iterable[tuple[int, int, int]],
    tokens: int,
    *,
    element_bytes: int,
    storage_format: StorageFormat = "as_computed",
    states: Iterable[Sequence[int]] = (),
    segments: int = 1,
) -> int:
    """Bytes of an entry's files, within 2 % once they are more than about 100 KB.

    layers × kv heads × tokens × (key width + value width) × bytes an element, plus scales, token ids, headers
    and the manifest. ``layers``: (kv heads, key width, value width) of each layer that keeps something for
    every token. ``states``: shapes of whole-state tensors, which are kept as computed. ``segments``: in how
    many pieces it is written; int8 and int4 keys round their groups up in each.
    """
    total = _MANIFEST_BYTES + tokens * 4 + tokens // 64 * 16 + segments * _BYTES_PER_FILE
    pieces = [tokens // segments + (number < tokens % segments) for number in range(segments)]
    parts_per_tensor = 4 if storage_format in ("int8", "int4") else 1
    for heads, key_width, value_width in layers:
        for piece in pieces:
            total += tensor_bytes((heads, piece, key_width), element_bytes, storage_format, "key")
            total += tensor_bytes((heads, piece, value_width), element_bytes, storage_format, "value")
        total += 2 * segments * parts_per_tensor * _HEADER_BYTES_PER_TENSOR
    shapes = list(states)
    total += sum(math.prod(shape) * element_bytes + _HEADER_BYTES_PER_TENSOR for shape in shapes)
    return total + (_BYTES_PER_FILE if shapes else 0)


def queued_bytes(batch_bytes: int) -> int:
    """The most bytes that wait in memory to be written, beside batches of so many bytes."""
    return min(MOST_QUEUED_BYTES, max(batch_bytes // _QUEUED_SHARE, _LEAST_QUEUED_BYTES))
