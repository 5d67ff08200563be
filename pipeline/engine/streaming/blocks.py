"""Blocks of prepared weights: safetensors files written tensor by tensor, read by explicit reads that are checked and leave no page cache.

A file's tensors lie one behind another from a page's boundary on, so that what is needed together is one read. Every tensor has a checksum
in the manifest; each read is compared with it, so damage is found when it would be used, not later.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.atomic import replace_file
from pipeline.stores.kv.formats import as_bytes
from pipeline.stores.kv.tensor_file import checksum

_PAGE_BYTES = 4096
_READ_BYTES = 8 * 2**20  # what is read at once, and leaves the page cache before more is read
_MOST_BUFFERS = 512  # of one read; the system allows 1,024
_NAMES: Mapping[torch.dtype, str] = {
    torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8", torch.int8: "I8", torch.int32: "I32",
    torch.int64: "I64", torch.bool: "BOOL", torch.float64: "F64",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class Damaged(Exception):
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
            "name": self.name, "offset": self.offset, "bytes": self.bytes, "dtype": _NAMES[self.dtype], "shape": list(self.shape),
            "checksum": self.checksum,
        }  # fmt: skip

    @classmethod
    def from_json(cls, file: str, value: Mapping[str, Any]) -> Block:
        """The reverse of ``to_json``. Raises KeyError, TypeError or ValueError."""
        return cls(
            file, str(value["name"]), int(value["offset"]), int(value["bytes"]), _DTYPES[value["dtype"]], tuple(map(int, value["shape"])),
            str(value["checksum"]),
        )  # fmt: skip


Described = tuple[str, torch.dtype, tuple[int, ...]]


def write_blocks(path: Path, described: Sequence[Described], tensors: Iterable[torch.Tensor]) -> list[Block]:
    """Write one safetensors file, atomically, from ``tensors`` in the order of ``described``; they are asked for one at a time.

    Raises StoppedEarly when the disk is full.
    """
    sizes = [_bytes_of(dtype, shape) for _, dtype, shape in described]
    begins = [sum(sizes[:index]) for index in range(len(sizes))]
    header = _header(described, begins, sizes)
    blocks = []
    with replace_file(path) as file:
        file.write(header)
        for (name, dtype, shape), begin, size, tensor in zip(described, begins, sizes, tensors, strict=True):
            data = as_bytes(tensor.detach().to("cpu", dtype).contiguous())
            if len(data) != size:
                raise ValueError(f"{name} has {len(data)} bytes where {size} were announced")
            file.write(data)
            blocks.append(Block(path.name, name, len(header) + begin, size, dtype, shape, checksum(data)))
        file.flush()
        os.fsync(file.fileno())  # what is not on the disk yet cannot leave the page cache
        forget(file.fileno())
    return blocks


def _header(described: Sequence[Described], begins: Sequence[int], sizes: Sequence[int]) -> bytes:
    """Length and JSON, filled up with spaces so that the tensors begin at a page."""
    entries = {
        name: {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, begin + size]}
        for (name, dtype, shape), begin, size in zip(described, begins, sizes, strict=True)
    }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _PAGE_BYTES)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(dtype: torch.dtype, shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel()) * dtype.itemsize


def forget(file: int, offset: int = 0, size: int = 0) -> None:
    """Let the page cache drop a range (0: to the end), where the system can."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(file, offset, size, os.POSIX_FADV_DONTNEED)


class BlockFiles:
    """The files of one folder, opened on first use. ``read_bytes`` counts what was read, rows of embeddings apart."""

    def __init__(self, folder: Path, *, keep_page_cache: bool = False) -> None:
        self._folder = folder
        self._keep = keep_page_cache
        self._open: dict[str, int] = {}
        self.read_bytes = 0
        self.row_bytes = 0

    def read(self, blocks: Sequence[Block], into: Sequence[torch.Tensor]) -> None:
        """Fill ``into`` with ``blocks``, which lie one behind another in one file. Raises Damaged, or OSError."""
        file = self._file(blocks[0].file)
        begin = 0
        while begin < len(blocks):
            end, size = begin + 1, blocks[begin].bytes
            while end < len(blocks) and end - begin < _MOST_BUFFERS and size + blocks[end].bytes <= _READ_BYTES:
                size += blocks[end].bytes
                end += 1
            self._fill(file, blocks[begin:end], into[begin:end])
            begin = end
        for block, tensor in zip(blocks, into, strict=True):
            if checksum(as_bytes(tensor)) != block.checksum:
                raise Damaged(block.file, block.name)

    def _fill(self, file: int, blocks: Sequence[Block], into: Sequence[torch.Tensor]) -> None:
        buffers = [as_bytes(tensor) for tensor in into]
        offset = blocks[0].offset
        while buffers:
            head = [buffers[0][:_READ_BYTES]] if len(buffers) == 1 else buffers
            count = os.preadv(file, head, offset)
            if not count:
                raise Damaged(blocks[0].file, blocks[0].name)
            if not self._keep:
                forget(file, offset, count)
            offset += count
            self.read_bytes += count
            buffers = _after(buffers, count)

    def read_row(self, block: Block, row: int, into: memoryview) -> None:
        """Fill ``into`` with one row of a two-dimensional block. Rows that are used often stay in the page cache."""
        offset = block.offset + row * len(into)
        if os.preadv(self._file(block.file), [into], offset) != len(into):
            raise Damaged(block.file, block.name)
        self.row_bytes += len(into)

    def close(self, name: str | None = None) -> None:
        """Close the file called so, or all: the next read opens what is there then."""
        for file in [name] if name is not None else list(self._open):
            if file in self._open:
                os.close(self._open.pop(file))

    def _file(self, name: str) -> int:
        if name not in self._open:
            self._open[name] = os.open(self._folder / name, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
            if hasattr(os, "posix_fadvise"):
                # Explicit reads say what they want; reading ahead of single rows would read the file many times over.
                os.posix_fadvise(self._open[name], 0, 0, os.POSIX_FADV_RANDOM if name.startswith("rows-") else os.POSIX_FADV_SEQUENTIAL)
        return self._open[name]


def _after(buffers: list[memoryview], count: int) -> list[memoryview]:
    """What is left of ``buffers`` once ``count`` bytes are filled."""
    while buffers and count >= len(buffers[0]):
        count -= len(buffers[0])
        buffers = buffers[1:]
    return [buffers[0][count:], *buffers[1:]] if buffers else []
