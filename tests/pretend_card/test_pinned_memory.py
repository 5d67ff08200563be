"""Pinned host memory of exactly the size that is asked for, used again when no copy needs it any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipeline.engine.streaming.buffer_pool import BufferPool
from pipeline.engine.streaming.weight_file import Block
from pipeline.system.pinned_memory import PinnedMemory, pinned_memory, sent

PAGE = 4096
MIB = 2**20


@pytest.fixture
def memory() -> Iterator[PinnedMemory]:
    found = PinnedMemory()
    yield found
    found.release()


@pytest.fixture(autouse=True)
def _nothing_left() -> None:
    torch.empty(1, pin_memory=True)  # torch asks whether memory is pinned only once CUDA has been used
    torch.cuda.synchronize()
    pinned_memory.release()


def pinned_bytes(card: Any) -> int:
    return int(card.memory(0)["pinned"])


@pytest.mark.parametrize("size", [1, 4096, 5 * MIB + 1, 33 * MIB])
def test_a_block_takes_its_pages_and_no_more(size: int, card: Any, memory: PinnedMemory) -> None:
    before = pinned_bytes(card)
    block = memory.take(size)
    assert len(block.bytes) == size
    assert block.bytes.is_pinned()
    assert pinned_bytes(card) - before == memory.held_bytes < size + PAGE
    del block
    memory.release()
    assert pinned_bytes(card) == before


def test_a_buffer_of_streamed_weights_takes_its_pages_and_no_more(card: Any) -> None:
    before, size = pinned_bytes(card), 4 * MIB + 5 * PAGE
    pool = BufferPool([[Block("file", "name", 0, size, torch.uint8, (size,), "")]], pinned=True)
    buffer = pool.take()
    assert size <= pinned_bytes(card) - before < size + PAGE
    del buffer


def test_what_comes_back_is_used_again_for_what_fits_it_closely(card: Any, memory: PinnedMemory) -> None:
    before = pinned_bytes(card)
    places = []
    for size in (10 * MIB, 9 * MIB, 8 * MIB):
        block = memory.take(size)
        places.append(block.bytes.data_ptr())
        del block
    assert len(set(places)) == 1
    block = memory.take(5 * MIB)  # too loose: the other goes before this one comes
    assert block.bytes.data_ptr() != places[0]
    assert pinned_bytes(card) - before == 5 * MIB


def test_memory_under_a_copy_is_not_given_out_before_it_is_done(card: Any, memory: PinnedMemory) -> None:
    side = torch.cuda.Stream()
    for number in range(3):
        block = memory.take(MIB)
        block.bytes.fill_(number)
        with torch.cuda.stream(side):
            near = block.bytes.to("cuda", non_blocking=True)
            near.record_stream(side)
        block.copied(side.record_event(), side)
        del block
    memory.release()  # nor unregistered
    torch.cuda.current_stream().wait_stream(side)
    assert near.unique().tolist() == [2]


def test_several_tensors_are_sent_in_one_copy(card: Any) -> None:
    tensors = torch.arange(7), torch.ones(3, 5, dtype=torch.bfloat16), torch.tensor([True])
    before = card.counts()
    near = sent(tensors, torch.device("cuda", 0))
    after = card.counts()
    assert after["pinned copies to the card"] - before.get("pinned copies to the card", 0) == 1
    assert after.get("host waits", 0) == before.get("host waits", 0)
    for found, expected in zip(near, tensors, strict=True):
        torch.testing.assert_close(found.cpu(), expected)
