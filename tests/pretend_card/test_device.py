"""What a card does and refuses: operators, devices, types."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional


@pytest.fixture
def here(card: Any) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 5, device="cuda")


def test_numbers_are_those_of_the_cpu(here: torch.Tensor) -> None:
    assert here.is_cuda
    assert here.device == torch.device("cuda", 0)
    torch.testing.assert_close((here @ here.T).cpu(), here.cpu() @ here.cpu().T)
    assert torch.cat([here, here]).shape == (8, 5)
    assert torch.stack([here, here]).sum(0).is_cuda


def test_views_share_memory(here: torch.Tensor) -> None:
    here[1:3, ::2].zero_()
    assert here[1, 0].item() == 0
    assert here.cpu()[2, 4] == 0
    assert here.view(5, 4).data_ptr() == here.data_ptr()


@pytest.mark.parametrize(
    "work",
    [
        lambda here: here + torch.ones(4, 5),
        lambda here: here @ torch.ones(5, 2),
        lambda here: torch.cat([here, torch.ones(4, 5)]),
        lambda here: here.index_select(0, torch.tensor([1])),
        lambda here: functional.embedding(torch.tensor([1]), here),
        lambda here: functional.linear(torch.ones(2, 5), here),
        lambda here: torch.where(torch.ones(4, 5) > 0, here, here),
    ],
)
def test_operands_on_two_devices_are_refused(
    here: torch.Tensor, work: Callable[[torch.Tensor], object]
) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        work(here)


def test_operands_on_two_cards_are_refused(cards: Callable[..., None]) -> None:
    cards("2x8GiB")
    first, second = (torch.ones(3, device=f"cuda:{number}") for number in range(2))
    with pytest.raises(RuntimeError, match=r"cuda:0 and cuda:1|cuda:1 and cuda:0"):
        first + second
    assert (first.to("cuda:1") + second).tolist() == [2, 2, 2]


def test_a_card_that_is_not_there_is_refused(cards: Callable[..., None]) -> None:
    cards("2x8GiB")
    assert torch.cuda.device_count() == 2
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="cuda:2")


def test_what_cuda_takes_from_the_host_is_taken(here: torch.Tensor) -> None:
    """Single numbers, and indices of an index operator, which it copies there."""
    assert (here + torch.tensor(2.0)).is_cuda
    assert here[torch.tensor([1, 2])].shape == (2, 5)
    values = torch.zeros(8, device="cuda")
    values[torch.tensor([1, 2], device="cuda")] = 3.0
    assert values.sum().item() == 6


def test_modules_move(card: Any) -> None:
    layer = torch.nn.Linear(3, 4).to("cuda")
    assert layer(torch.ones(2, 3, device="cuda")).is_cuda
    assert torch.nn.Parameter(torch.ones(3, device="cuda"), requires_grad=False).is_cuda


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention(card: Any, dtype: torch.dtype) -> None:
    values = torch.randn(1, 2, 6, 8, device="cuda", dtype=dtype)
    found = functional.scaled_dot_product_attention(values, values, values, is_causal=True)
    near = values.cpu()
    torch.testing.assert_close(
        found.cpu(), functional.scaled_dot_product_attention(near, near, near, is_causal=True)
    )


def test_without_gradients_too(card: Any) -> None:
    with torch.inference_mode():
        values = torch.empty(3, device="cuda")
        values.fill_(2)
        spread = values.view(3, 1).expand(3, 4).contiguous()
        chosen = torch.empty(2, 4, device="cuda")
        torch.index_select(spread, 0, torch.tensor([2, 0], device="cuda"), out=chosen)
    assert chosen.tolist() == [[2.0] * 4] * 2


def test_threads_compute_on_it(card: Any) -> None:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(torch.ones(2, device="cuda").sum().item()))
    thread.start()
    thread.join()
    assert found == [2.0]


def test_launches_and_waits_are_counted(card: Any) -> None:
    values = torch.ones(100, device="cuda")
    card.reset_counts()
    (values + 1).mul_(2)
    assert (card.counts()["launches"], card.counts().get("host waits", 0)) == (2, 0)
    values.sum().item()
    assert (card.counts()["launches"], card.counts()["host waits"]) == (4, 1)
    values.nonzero()
    values.cpu()
    assert card.counts()["host waits"] == 3
    values[values > 0]
    assert card.counts()["host waits"] == 4
    values[values > 0] = 2.0  # which does not look for them
    assert card.counts()["host waits"] == 4
    assert card.counts()["bytes from the card"] == 400


def test_statistics_before_anything_has_begun_are_refused(card: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in torch: a process that has not touched its cards has no statistics of them."""
    from tests.pretend_card import devices

    monkeypatch.setattr(devices, "_begun", [])
    assert not torch.cuda.is_initialized()
    with pytest.raises(RuntimeError, match="did you call init"):
        torch.cuda.reset_peak_memory_stats()
    torch.cuda.mem_get_info()
    torch.cuda.reset_peak_memory_stats()
