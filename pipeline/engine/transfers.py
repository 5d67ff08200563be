"""Between the host and the device without waiting: out of pinned memory, and into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def sent(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """``values`` on ``device``; on a card they may still be on their way, which its stream knows."""
    return carried(torch.tensor(values, dtype=dtype), device)


def carried(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on ``device``, as ``sent``."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Arrival:
    """A tensor on its way to the host; what computed it need not have run yet."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(tensor.device))
        else:
            self._host = tensor.cpu()

    def wait(self) -> torch.Tensor:
        """The same on the host, once it is there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host
