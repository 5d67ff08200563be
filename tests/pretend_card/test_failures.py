"""Cards that fail on demand, as the product will meet it."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def work(launches: int = 5) -> None:
    values = torch.ones(2, device="cuda")
    for _ in range(launches):
        values = values + 1


def test_a_card_that_is_lost_stays_lost(card: Any) -> None:
    card.fail_after(3, "lost")
    for _ in range(2):
        with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
            work()
    with pytest.raises(torch.AcceleratorError):
        torch.cuda.synchronize()
    card.fail_after(0, "")
    work()


def test_memory_runs_out_once(card: Any) -> None:
    card.fail_after(3, "oom")
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        work()
    work()


def test_cublas_has_no_memory_for_its_handle(card: Any) -> None:
    card.fail_after(3, "cublas")
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_ALLOC_FAILED") as found:
        work()
    assert not isinstance(found.value, torch.OutOfMemoryError)  # which is why nobody takes it for that
    work()
