"""Blocks of prepared weights: safetensors files written tensor by tensor, read by explicit reads that are
checked and leave no page cache.

A file's tensors lie one behind another from a page's boundary on, so that what is needed together is one
read, each at a multiple of 64 bytes, so that a tensor may be used where its page has landed; what fills the
gaps are tensors, too. Every tensor has a checksum in the manifest; each read is compared with it, so damage
is found when it would be used, not later.

Reads go around the page cache where the system lets them: the disk writes into the buffer itself, and no
processor copies. On few cores that is what matters, more than the disk's own pace: 0.5 GB read beside
products of 16 rows made those 1.24 times as long through the page cache, 1.02 times around it (two cores, a
disk of 0.8 GB/s).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from pipeline.stores.kv.formats import as_bytes
from pipeline.stores.kv.tensor_file import checksum
from pipeline.system.atomic_write import replace_file

PAGE_BYTES = 4096  # reads around the page cache begin and end at multiples of it, on the disk and in memory
_ALIGNED = 64  # bytes: of every kind of number, and of a processor's cache line
_READ_BYTES = 8 * 2**20  # what is read at once, and leaves the page cache before more is read
_NAMES: Mapping[torch.dtype, str] = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.bool: "BOOL",
    torch.float64: "F64",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class DamagedWeights(Exception):
    """A block's bytes are not those that were written. ``file`` is the name of its file."""

    def __init__(self, file: str, block: str) -> None:
        super().__init__(f"{block} in {file} is damaged")
        self.file = file


@dataclass(frozen=True, slots=True)
class Block:
    """One tensor of a file: where its bytes are, what they are, and their checksum (128 bits of xxh3)."""

    file: str
    name: str
    offset: int
    bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    checksum: str

    def to_json(self) -> dict[str, Any]:
        """All but the file."""
        return {
            "name": self.name,
            "offset": self.offset,
            "bytes": self.bytes,
            "dtype": _NAMES[self.dtype],
            "shape": list(self.shape),
            "checksum": self.checksum,
        }

    @classmethod
    def from_json(cls, file: str, value: Mapping[str, Any]) -> Block:
        """The reverse of ``to_json``. Raises KeyError, TypeError or ValueError."""
        return cls(
            file,
            str(value["name"]),
            int(value["offset"]),
            int(value["bytes"]),
            _DTYPES[value["dtype"]],
            tuple(map(int, value["shape"])),
            str(value["checksum"]),
        )


Described = tuple[str, torch.dtype, tuple[int, ...]]


def write_blocks(path: Path, described: Sequence[Described], tensors: Iterable[torch.Tensor]) -> list[Block]:
    """Write one safetensors file, atomically, from ``tensors`` in the order of ``described``; they are asked
    for one at a time.

    Raises StoppedEarly when the disk is full.
    """
    sizes = [_bytes_of(dtype, shape) for _, dtype, shape in described]
    gaps = [-size % _ALIGNED for size in sizes[:-1]] + [0]
    begins = list(accumulate((size + gap for size, gap in zip(sizes, gaps, strict=True)), initial=0))[:-1]
    header = _header(described, begins, sizes, gaps)
    blocks = []
    with replace_file(path) as file:
        file.write(header)
        for (name, dtype, shape), begin, size, gap, tensor in zip(
            described, begins, sizes, gaps, tensors, strict=True
        ):
            data = as_bytes(tensor.detach().to("cpu", dtype).contiguous())
            if len(data) != size:
                raise ValueError(f"{name} has {len(data)} bytes where {size} were announced")
            file.write(data)
            file.write(bytes(gap))
            blocks.append(Block(path.name, name, len(header) + begin, size, dtype, shape, checksum(data)))
        file.flush()
        os.fsync(file.fileno())  # what is not on the disk yet cannot leave the page cache
        forget(file.fileno())
    return blocks


def _header(
    described: Sequence[Described], begins: Sequence[int], sizes: Sequence[int], gaps: Sequence[int]
) -> bytes:
    """Length and JSON, filled up with spaces so that the tensors begin at a page. The format knows no gaps:
    they are named as tensors.
    """
    entries: dict[str, Any] = {}
    for (name, dtype, shape), begin, size, gap in zip(described, begins, sizes, gaps, strict=True):
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, begin + size]}
        if gap:
            entries[f"{name}.gap"] = {
                "dtype": "U8",
                "shape": [gap],
                "data_offsets": [begin + size, begin + size + gap],
            }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % PAGE_BYTES)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(dtype: torch.dtype, shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel()) * dtype.itemsize


def forget(file: int, offset: int = 0, size: int = 0) -> None:
    """Let the page cache drop a range (0: to the end), where the system can."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(file, offset, size, os.POSIX_FADV_DONTNEED)


def pages(blocks: Sequence[Block]) -> tuple[int, int]:
    """(offset, bytes) of the whole pages in which ``blocks`` lie, one behind another in one file."""
    first = blocks[0].offset // PAGE_BYTES * PAGE_BYTES
    return first, -(-(blocks[-1].offset + blocks[-1].bytes - first) // PAGE_BYTES) * PAGE_BYTES


class BlockFiles:
    """The files of one folder, opened on first use. ``read_bytes`` counts what was read, rows of embeddings
    apart.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[tuple[str, bool], int] = {}
        self._around = getattr(os, "O_DIRECT", 0)  # 0: through the page cache, which then drops what was read
        self.read_bytes = 0
        self.row_bytes = 0

    def read(self, blocks: Sequence[Block], into: memoryview) -> None:
        """Fill ``into``, which begins at a page, with the pages of ``blocks``. Raises Damaged, or OSError."""
        first, _ = pages(blocks)
        needed, done = blocks[-1].offset + blocks[-1].bytes - first, 0
        while done < needed:
            count = self._read_some(blocks[0].file, into[done : done + _READ_BYTES], first + done)
            if not count:
                raise DamagedWeights(blocks[0].file, blocks[0].name)
            done += count
        for block in blocks:
            if checksum(into[block.offset - first :][: block.bytes]) != block.checksum:
                raise DamagedWeights(block.file, block.name)

    def _read_some(self, name: str, into: memoryview, offset: int) -> int:
        """Bytes read: what ``into`` holds, or less than that at the file's end or where the system likes."""
        # a read that ended within a page goes on as any can
        around = 0 if offset % PAGE_BYTES else self._around
        try:
            file = self._file(name, around)
            count = os.preadv(file, [into], offset)
        except OSError:
            if not around:
                raise
            self._around = (
                0  # this file system, or this memory, knows no such reads; a fault of the disk comes again
            )
            return self._read_some(name, into, offset)
        forget(file, offset, count)  # some file systems take such reads and serve them from the page cache
        self.read_bytes += count
        return count

    def read_row(self, block: Block, row: int, into: memoryview) -> None:
        """Fill ``into`` with one row of a two-dimensional block. Rows that are used often stay in the page
        cache.
        """
        offset = block.offset + row * len(into)
        if os.preadv(self._file(block.file), [into], offset) != len(into):
            raise DamagedWeights(block.file, block.name)
        self.row_bytes += len(into)

    def close(self, name: str | None = None) -> None:
        """Close the file called so, or all: the next read opens what is there then."""
        for key in [key for key in self._open if name is None or key[0] == name]:
            os.close(self._open.pop(key))

    def _file(self, name: str, around: int = 0) -> int:
        key = name, bool(around)
        if key not in self._open:
            flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | around
            file = os.open(self._folder / name, flags)
            if hasattr(os, "posix_fadvise") and not around:
                # Explicit reads say what they want; reading ahead of single rows would read the file many
                # times over.
                os.posix_fadvise(
                    file, 0, 0, os.POSIX_FADV_RANDOM if name.startswith("rows-") else os.POSIX_FADV_SEQUENTIAL
                )
            if self._open.setdefault(key, file) != file:  # the reader's thread was faster
                os.close(file)
        return self._open[key]
