"""A card's memory ends, comes in segments, and holds garbage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

MIB = 2**20


def block(mebibytes: int) -> torch.Tensor:
    return torch.empty(mebibytes * MIB, device="cuda", dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_new_memory_is_not_a_number(card: Any, dtype: torch.dtype) -> None:
    assert torch.isnan(torch.empty(10, device="cuda", dtype=dtype)).all().item()


def test_what_does_not_fit_is_refused(card: Any) -> None:
    before = torch.cuda.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory.*total capacity of 8 GiB"):
        block(9000)
    assert torch.cuda.memory_allocated() == before


def test_bytes_are_counted(card: Any) -> None:
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    large = block(1024)
    assert torch.cuda.memory_allocated() - before == 1024 * MIB
    assert free - torch.cuda.mem_get_info()[0] == 1024 * MIB
    del large
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before == 1024 * MIB
    assert torch.cuda.memory_reserved() >= 1024 * MIB  # the allocator keeps it
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == free


def test_the_context_and_other_programs_take_their_share(cards: Callable[..., None]) -> None:
    cards("8GiB", context="450MiB", foreign="2GiB")
    free, total = torch.cuda.mem_get_info()
    assert total == 8192 * MIB
    assert total - free >= (450 + 2048) * MIB
    with pytest.raises(torch.OutOfMemoryError):
        block(6000)


def test_where_more_is_in_use_than_a_card_has_nothing_is_free(cards: Callable[..., None]) -> None:
    """Other programs may take what was free, and graphs, whose memory torch does not know, too."""
    cards("1GiB", context="0")
    kept = block(600)
    cards("1GiB", context="0", foreign="900MiB")
    assert torch.cuda.mem_get_info()[0] == 0
    with pytest.raises(torch.OutOfMemoryError, match=r" of which 0 MiB is free"):
        block(30)
    assert kept.is_cuda


def test_what_is_cached_is_given_back_before_memory_is_out(cards: Callable[..., None]) -> None:
    cards("1GiB", context="0")
    for size in (600, 700, 800):
        block(size)


def test_memory_fragments(cards: Callable[..., None]) -> None:
    """Half of it is free, and no piece is large enough: a segment is given back only as a whole."""
    cards("1GiB", context="0")
    torch.cuda.empty_cache()
    large = block(900)
    del large
    parts = [block(100) for _ in range(9)]
    del parts[::2]
    assert torch.cuda.memory_reserved() - torch.cuda.memory_allocated() >= 500 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        block(300)


def test_each_card_has_its_own(cards: Callable[..., None]) -> None:
    cards("2x8GiB")
    torch.cuda.set_device(1)
    before = torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)
    kept = block(100)
    after = torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)
    assert (after[0] - before[0], after[1] - before[1]) == (0, 100 * MIB)
    assert kept.device == torch.device("cuda", 1)


def test_pinned_memory_is_counted(card: Any) -> None:
    before = card.memory(0)["pinned"]
    kept = torch.empty(MIB, pin_memory=True, dtype=torch.uint8)
    assert kept.is_pinned()
    assert card.memory(0)["pinned"] - before == MIB
    del kept
    assert card.memory(0)["pinned"] == before


def test_a_dry_card_follows_models_of_any_size(cards: Callable[..., None], card: Any) -> None:
    """Memory and launches, without the arithmetic."""
    cards("80GiB", dry="1")
    weights = torch.empty(100_000, 100_000, device="cuda", dtype=torch.bfloat16)
    rows = torch.empty(8, 100_000, device="cuda", dtype=torch.bfloat16)
    card.reset_counts()
    assert torch.nn.functional.linear(rows, weights).shape == (8, 100_000)
    assert card.counts()["launches"] == 1
    assert torch.cuda.memory_allocated() > 20 * 10**9
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty_like(weights).repeat(4, 1)
