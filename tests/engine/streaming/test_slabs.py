"""Storage of units on their way: one size for all, whatever lies in it, each tensor where its kind of number may lie."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.streaming.blocks import Block
from pipeline.engine.streaming.slabs import Slabs

DTYPES = (torch.uint8, torch.int8, torch.bfloat16, torch.float32, torch.int64)


def block(dtype: torch.dtype, numbers: int) -> Block:
    return Block("part", "name", 0, numbers * dtype.itemsize, dtype, (numbers,), "")


UNITS = st.lists(st.lists(st.builds(block, st.sampled_from(DTYPES), st.integers(0, 300)), min_size=1, max_size=5), min_size=1, max_size=6)


@given(UNITS)
def test_every_unit_fits_into_any_slab(units: list[list[Block]]) -> None:
    slabs = Slabs(units, pinned=False)
    for unit in units * 2:
        slab, tensors = slabs.take(unit)
        for number, tensor in enumerate(tensors):
            tensor.fill_(number)
        for number, (tensor, one) in enumerate(zip(tensors, unit, strict=True)):
            assert (tensor.dtype, tuple(tensor.shape)) == (one.dtype, one.shape)
            assert tensor.is_contiguous()
            assert bool((tensor == number).all())  # none lies over another
        slabs.give_back(slab)
    assert slabs.made == 1


def test_what_is_in_use_is_not_given_out_again() -> None:
    unit = [block(torch.float32, 8)]
    slabs = Slabs([unit], pinned=False)
    (first, _), (second, _) = slabs.take(unit), slabs.take(unit)
    assert first.data_ptr() != second.data_ptr()
    slabs.give_back(first)
    assert slabs.take(unit)[0].data_ptr() == first.data_ptr()
    assert slabs.made == 2
