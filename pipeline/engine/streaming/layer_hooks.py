"""Gates in a model: before a layer computes, its weights are there. Outside of lanes they are loaded at once;
a lane waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pipeline.engine.streaming.microbatch_scheduler import Lanes
from pipeline.engine.streaming.weight_prefetcher import StreamedWeights


class Gates:
    """The gates of one model. ``lanes`` is set while an engine runs micro-batches; without it every call
    passes on its own.
    """

    def __init__(self, model: Any, weights: StreamedWeights) -> None:
        self.weights = weights
        self.lanes: Lanes[Any] | None = None
        for path, index in weights.by_module.items():
            module = model.get_submodule(path)
            module.forward = self._gated(module.forward, index)
        if weights.head_units:
            self._module = model.get_submodule(weights.head_path)
            self._module.forward = self._head
        else:  # a head that is small enough to stay
            model.register_forward_hook(self._count)

    def heads(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The head's products with ``inputs``, for which its matrix is read once."""
        return self.weights.head(inputs, self._module.bias)

    def _gated(self, forward: Callable[..., Any], index: int) -> Callable[..., Any]:
        def passed(*args: Any, **kwargs: Any) -> Any:
            lane = self.lanes.current() if self.lanes is not None else None
            if lane is None or self.lanes is None:
                self.weights.open(index)
            else:
                self.lanes.wait(lane, index)
            return forward(*args, **kwargs)

        return passed

    def _head(self, states: torch.Tensor) -> torch.Tensor:
        lane = self.lanes.current() if self.lanes is not None else None
        if lane is None or self.lanes is None:
            return self.heads([states])[0]
        products: torch.Tensor = self.lanes.wait(lane, -1, states)
        return products

    def _count(self, *_: Any) -> None:
        self.weights.sweeps += 1
