"""What a card does and refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def test_operands_on_two_devices_are_refused(card: Any) -> None:
    here = torch.randn(4, 5, device="cuda")
    with pytest.raises(RuntimeError, match="same device"):
        here + torch.ones(4, 5)
    assert (here + torch.tensor(2.0)).is_cuda
    torch.testing.assert_close((here @ here.T).cpu(), here.cpu() @ here.cpu().T)


def test_what_nobody_waited_for_raises(card: Any) -> None:
    host, side = torch.ones(1000, pin_memory=True), torch.cuda.Stream()
    with torch.cuda.stream(side):
        near = host.to("cuda", non_blocking=True)
    with pytest.raises(RuntimeError, match="RACE"):
        near + 1
    assert len(card.races()) == 1
    card.forget_races()
    torch.cuda.current_stream().wait_stream(side)
    assert float((near + 1).sum()) == 2000
