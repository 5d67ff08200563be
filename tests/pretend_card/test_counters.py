"""What is counted: launches by operator and layer, waits and their places, bytes, memory beside tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Cards = Callable[..., None]


def test_launches_are_counted_for_the_layer_that_runs(card: Any) -> None:
    from tests.pretend_card.report import by_layer, launches_by_layer

    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(2)).to("cuda")
    values = torch.ones(1, 4, device="cuda")
    card.reset_counts()
    with torch.inference_mode(), by_layer(layers):
        for layer in layers:
            values = layer(values) + 1
    assert launches_by_layer() == {"0": {"aten::mm.out": 1}, "1": {"aten::mm.out": 1}}
    assert card.counts()["launches"] == 4


def test_waits_are_remembered_with_their_place(card: Any, cards: Cards) -> None:
    cards("8GiB", stacks="1")
    values = torch.ones(4, device="cuda")
    card.reset_counts()
    values.sum().item()
    values.cpu()
    torch.cuda.synchronize()
    counts = card.counts()
    assert counts["host waits"] == 3
    assert counts["host waits: aten::_local_scalar_dense"] == counts["host waits: a copy from the card"] == 1
    stacks = card.wait_stacks()
    assert len(stacks) == 3
    assert all("test_counters.py" in stack for stack in stacks)


def test_rows_that_are_looked_up_are_read_not_the_table(card: Any) -> None:
    table = torch.zeros(1000, 8, device="cuda")
    rows = torch.tensor([3, 4], device="cuda")
    card.reset_counts()
    torch.nn.functional.embedding(rows, table)
    assert card.counts()["bytes read by kernels"] == rows.nbytes + 2 * 8 * 4
    card.reset_counts()
    table.index_copy_(0, rows, torch.ones(2, 8, device="cuda"))
    assert card.counts()["bytes written by kernels"] == 2 * 8 * 4 + 2 * 8 * 4  # ones, and the rows


@pytest.mark.parametrize(("name", "mebibytes"), [("rtx4060", 8.125), ("h200", 32)])
def test_a_stream_that_multiplies_has_a_workspace(
    card: Any, cards: Cards, name: str, mebibytes: float
) -> None:
    cards(name)
    card.clear_workspaces()
    values, side = torch.ones(4, 4, device="cuda"), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    before = torch.cuda.memory_allocated()
    kept = values @ values
    assert torch.cuda.memory_allocated() - before == int(mebibytes * 2**20) + 512
    kept = values @ values + kept
    assert card.counts()["cublas workspaces"] == 1
    with torch.cuda.stream(side):
        values @ values
    assert card.counts()["cublas workspaces"] == 2
    torch.cuda.synchronize()
    card.clear_workspaces()


def test_a_workspace_that_does_not_fit_is_out_of_memory(card: Any, cards: Cards) -> None:
    card.clear_workspaces()
    cards("100MiB", context="0B", workspace="200MiB")
    values = torch.ones(4, 4, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        values @ values


def test_pinned_memory_takes_powers_of_two(card: Any) -> None:
    before = card.memory(0)["pinned"]
    kept = torch.empty((1 << 20) + 1, dtype=torch.uint8, pin_memory=True)
    assert card.memory(0)["pinned"] - before == 2 << 20
    del kept
    assert card.memory(0)["pinned"] == before


def test_memory_is_pinned_where_it_lies(card: Any) -> None:
    runtime = torch.cuda.cudart()
    host = torch.ones(1 << 16)
    before = card.memory(0)["pinned"]
    assert runtime.cudaHostRegister(host.data_ptr(), host.nbytes, 0) == 0
    assert runtime.cudaHostRegister(host.data_ptr(), 16, 0) == 712
    assert host[100:].is_pinned()
    assert card.memory(0)["pinned"] - before == host.nbytes
    near = host.to("cuda", non_blocking=True)
    assert card.counts()["pinned copies to the card"] == 1
    with pytest.raises(RuntimeError, match="RACE: memory was unregistered under a copy"):
        runtime.cudaHostUnregister(host.data_ptr())
    card.forget_races()
    torch.cuda.synchronize()
    assert runtime.cudaHostRegister(host.data_ptr(), host.nbytes, 0) == 0
    assert runtime.cudaHostUnregister(host.data_ptr()) == 0
    assert runtime.cudaHostUnregister(host.data_ptr()) == 713
    assert near.sum() == 1 << 16


def test_pinned_copies_of_another_type_or_order_go_through_pageable_memory(card: Any) -> None:
    """The link copies dense memory of one type; all else is made ready on the host, which waits for it."""
    host = torch.ones(8, 8, pin_memory=True)
    near = torch.empty(8, 8, device="cuda")
    near.copy_(host, non_blocking=True)
    assert card.counts()["pinned copies to the card"] == 1
    near.copy_(host.T, non_blocking=True)
    near.half().copy_(host, non_blocking=True)
    assert card.counts()["unpinned non_blocking copies to the card"] == 2
    host.T.copy_(near, non_blocking=True)
    assert card.counts()["waiting copies from the card"] == 1


@pytest.mark.parametrize(
    ("kind", "error", "message", "stays"),
    [
        ("oom", torch.OutOfMemoryError, "out of memory", False),
        ("cublas", RuntimeError, "CUBLAS_STATUS_ALLOC_FAILED", False),
        ("cudnn", RuntimeError, "CUDNN_STATUS_ALLOC_FAILED", False),
        ("lost", torch.AcceleratorError, "illegal memory access", True),
        ("assert", torch.AcceleratorError, "device-side assert", True),
        ("ecc", torch.AcceleratorError, "uncorrectable ECC error", True),
        ("gone", torch.AcceleratorError, "unknown error", True),
    ],
)
def test_failures_on_demand(card: Any, kind: str, error: type[Exception], message: str, stays: bool) -> None:
    values = torch.ones(4, device="cuda")
    card.fail_after(3, kind)
    values + 1
    values + 1
    with pytest.raises(error, match=message):
        values + 1
    if stays:
        with pytest.raises(error, match=message):
            torch.cuda.synchronize()
        with pytest.raises(error, match=message):
            torch.empty(4, device="cuda")
    else:
        assert (values + 1).sum() == 8


def test_an_event_that_has_happened_is_no_wait(card: Any, cards: Cards) -> None:
    """By the pretended clock: the host has launched so much since that the card must be behind it."""
    cards("rtx4060", dry="1")
    large, small = torch.empty(1 << 26, device="cuda"), torch.empty(4, device="cuda")
    torch.cuda.synchronize()
    card.reset_counts()
    large.add_(1)
    torch.cuda.current_stream().record_event().synchronize()
    assert card.counts()["host waits"] == 1
    small.add_(1)
    event = torch.cuda.current_stream().record_event()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(10):
            torch.empty(4, device="cuda").add_(1)
    event.synchronize()
    assert (card.counts()["host waits"], card.counts()["host waits: event"]) == (1, 2)
