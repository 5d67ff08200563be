"""Digests of token ids, chained block by block: equal chains mean equal prefixes. No torch.

A block's digest covers all ids before it, so one comparison answers for the whole prefix. Digests only find
candidates: the ids themselves are stored beside the tensors and compared when an entry is read.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence

BLOCK_TOKENS = 64
DIGEST_BYTES = 8
ID_BYTES = 4


def pack(ids: Sequence[int]) -> bytes:
    """Little-endian int32. Raises OverflowError for what no token id is."""
    packed = array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(packed: bytes) -> tuple[int, ...]:
    """The ids of ``pack``."""
    ids = array("i", packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return tuple(ids)


def chain(packed: bytes) -> list[bytes]:
    """One digest for each whole block."""
    step = BLOCK_TOKENS * ID_BYTES
    digests: list[bytes] = []
    last = b""
    for start in range(0, len(packed) - step + 1, step):
        last = _digest(last, packed[start : start + step])
        digests.append(last)
    return digests


def tail(packed: bytes, digests: Sequence[bytes]) -> str:
    """A digest of all the ids: the chain, and what follows its last whole block."""
    rest = packed[len(digests) * BLOCK_TOKENS * ID_BYTES :]
    return _digest(digests[-1] if digests else b"", b"end" + rest).hex()


def common_tokens(first: bytes, second: bytes) -> int:
    """How many ids two packed sequences have in common from the start."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter // ID_BYTES
    low, high = 0, shorter // ID_BYTES  # equal up to low, not up to high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if first[: middle * ID_BYTES] == second[: middle * ID_BYTES] else (low, middle)
        )
    return low


def _digest(before: bytes, block: bytes) -> bytes:
    return hashlib.blake2b(before + block, digest_size=DIGEST_BYTES).digest()
