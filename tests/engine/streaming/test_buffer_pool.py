"""Storage of units on their way: one size for all, whatever lies in it, each tensor where its kind of number
may lie.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.engine.streaming import weight_file as module
from pipeline.engine.streaming.buffer_pool import Buffer, BufferPool, load
from pipeline.engine.streaming.weight_file import Block, BlockFiles, DamagedWeights, write_blocks

DTYPES = (torch.uint8, torch.int8, torch.bfloat16, torch.float32, torch.int64)
_files = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

TENSORS = st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 3000)), min_size=1, max_size=8)


def written(folder: Path, kinds: list[tuple[torch.dtype, int]]) -> tuple[list[Block], list[torch.Tensor]]:
    tensors = [torch.randint(0, 100, (numbers,)).to(dtype) for dtype, numbers in kinds]
    described = [(f"t{place}", tensor.dtype, tuple(tensor.shape)) for place, tensor in enumerate(tensors)]
    return write_blocks(folder / "part", described, tensors), tensors


def direct_reads(folder: Path) -> bool:
    try:
        os.close(os.open(folder / "part", os.O_RDONLY | os.O_DIRECT))
    except (AttributeError, OSError):
        return False
    return True


@_files
@given(kinds=TENSORS, cut=st.integers(0, 7), around=st.booleans())
def test_any_stretch_of_a_file_is_read_as_written(
    tmp_path: Path, kinds: list[tuple[torch.dtype, int]], cut: int, around: bool
) -> None:
    blocks, tensors = written(tmp_path, kinds)
    begin = cut % len(blocks)
    files = BlockFiles(tmp_path)
    if not around:
        files._around = 0
    found = load(files, blocks[begin:])
    files.close()
    for tensor, expected in zip(found, tensors[begin:], strict=True):
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
        assert tensor.is_contiguous()
        assert not tensor.numel() or tensor.data_ptr() % 64 == 0
        assert torch.equal(tensor, expected)


@_files
@given(kinds=TENSORS)
def test_every_unit_fits_into_any_slab(tmp_path: Path, kinds: list[tuple[torch.dtype, int]]) -> None:
    blocks, tensors = written(tmp_path, kinds)
    units = [[block] for block in blocks] + [blocks]
    pool, files = BufferPool(units, pinned=False), BlockFiles(tmp_path)
    for unit, expected in [*zip(units, [*([tensor] for tensor in tensors), tensors], strict=True)] * 2:
        buffer = pool.take()
        files.read(unit, buffer.landing(unit))
        assert all(map(torch.equal, buffer.tensors(unit), expected))  # none lies over another
        pool.give_back(buffer)
    files.close()
    assert pool.made == 1


def test_what_is_in_use_is_not_given_out_again(tmp_path: Path) -> None:
    blocks, _ = written(tmp_path, [(torch.float32, 8)])
    pool = BufferPool([blocks], pinned=False)
    first, second = pool.take(), pool.take()
    first.landing(blocks)[:] = b"1" * len(first.landing(blocks))
    second.landing(blocks)[:] = b"2" * len(second.landing(blocks))
    assert bytes(first.landing(blocks)[:1]) == b"1"
    pool.give_back(first)
    assert pool.take() is first
    assert pool.made == 2


def test_reads_go_around_the_page_cache_where_the_system_lets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, (expected,) = written(tmp_path, [(torch.float32, 10_000)])
    if not direct_reads(tmp_path):
        pytest.skip("the file system of temporary files knows no direct reads")
    opened: list[int] = []
    really = os.open

    def refusing(path: Path, flags: int, *rest: int) -> int:
        opened.append(flags & os.O_DIRECT)
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return really(path, flags, *rest)

    files = BlockFiles(tmp_path)
    assert torch.equal(load(files, blocks)[0], expected)
    assert files._around == os.O_DIRECT
    files.close()
    monkeypatch.setattr(module.os, "open", refusing)
    files = BlockFiles(tmp_path)
    assert torch.equal(load(files, blocks)[0], expected)
    assert torch.equal(load(files, blocks)[0], expected)
    files.close()
    assert opened == [os.O_DIRECT, 0]  # asked once, then never again


def test_another_fault_of_the_disk_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, _ = written(tmp_path, [(torch.float32, 10_000)])

    def failing(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module.os, "preadv", failing)
    with pytest.raises(OSError, match="Input/output error"):
        load(BlockFiles(tmp_path), blocks)


@pytest.mark.parametrize("most", [1, 100, 511, 4096, 5000, 10**6])
def test_reads_that_end_early_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """All of it is asked for, and as much of it as fits counts as read; the next read begins within a page,
    or at another one.
    """
    blocks, tensors = written(tmp_path, [(torch.uint8, 91), (torch.float32, 25_000 if most > 1 else 50)])
    really, asked = os.preadv, []

    def early(file: int, buffers: list[memoryview], offset: int) -> int:
        asked.append(len(buffers[0]))
        return min(most, really(file, buffers, offset))

    monkeypatch.setattr(module.os, "preadv", early)
    monkeypatch.setattr(module, "_READ_BYTES", 3 * 4096)
    files = BlockFiles(tmp_path)
    around = files._around
    assert all(map(torch.equal, load(files, blocks), tensors))
    assert files._around == around or not direct_reads(tmp_path)  # they end nothing for the reads that follow
    assert max(asked) <= 3 * 4096


def test_a_file_that_is_cut_is_damaged(tmp_path: Path) -> None:
    blocks, _ = written(tmp_path, [(torch.float32, 10_000)])
    for length in (blocks[0].offset + 39_999, blocks[0].offset + 4096, blocks[0].offset, 10):
        os.truncate(tmp_path / "part", length)
        with pytest.raises(DamagedWeights):
            load(BlockFiles(tmp_path), blocks)


def test_a_slab_begins_at_a_page(tmp_path: Path) -> None:
    blocks, _ = written(tmp_path, [(torch.uint8, 5)])
    for _ in range(20):
        buffer = Buffer([blocks])
        assert buffer.tensors(blocks)[0].data_ptr() % 4096 == blocks[0].offset % 4096
