"""``torch.cuda.CUDAGraph`` on the device: torch's own classes, over what they find in ``torch._C``."""

from __future__ import annotations

from typing import Any

import torch

from tests.pretend_card.extension import card

Pool = tuple[int, int]


def install() -> None:
    """Give torch's dummies a body."""
    base = torch._C._CUDAGraph
    for name in (
        "__new__",
        "__init__",
        "capture_begin",
        "capture_end",
        "instantiate",
        "replay",
        "reset",
        "pool",
        "nodes",
    ):
        setattr(base, name, _Graph.__dict__[name])
    torch._C._cuda_isCurrentStreamCapturing = card.is_capturing
    torch.cuda.graphs._cuda_isCurrentStreamCapturing = card.is_capturing
    torch.cuda.graphs._graph_pool_handle = torch._C._graph_pool_handle = _pool_handle


def _pool_handle() -> Pool:
    """As torch's: a handle that was asked for has its number in the second place."""
    return 0, int(card.new_pool())


class _Graph:
    """What ``torch._C._CUDAGraph`` is in a build with CUDA; its functions are put there."""

    _native: Any

    def __new__(cls, keep_graph: bool = False) -> Any:
        self: Any = object.__new__(cls)
        self._native = card.Graph()
        return self

    def __init__(self, keep_graph: bool = False) -> None:
        """All is done where it is made, as in torch's own."""

    def capture_begin(self, pool: Pool | None = None, capture_error_mode: str = "global") -> None:
        self._native.begin(sum(pool) if pool else 0, capture_error_mode)

    def capture_end(self) -> None:
        self._native.end()

    def instantiate(self) -> None:
        """Nothing to do: what was captured can be run."""

    def replay(self) -> None:
        self._native.replay()

    def reset(self) -> None:
        self._native.reset()

    def pool(self) -> Pool:
        return 0, int(self._native.pool)

    def nodes(self) -> list[str]:
        """What a replay runs, in order. Only pretended graphs have this."""
        return list(self._native.nodes())
