"""Gates in a model: before a layer computes, its weights are there. Outside of micro-batches they are loaded
at once; a micro-batch waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pipeline.engine.streaming.microbatch_scheduler import MicrobatchScheduler
from pipeline.engine.streaming.weight_prefetcher import WeightPrefetcher


class LayerHooks:
    """The gates of one model. ``microbatches`` is set while an engine runs micro-batches; without it every
    call passes on its own.
    """

    def __init__(self, model: Any, weights: WeightPrefetcher) -> None:
        self.weights = weights
        self.microbatches: MicrobatchScheduler[Any] | None = None
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
            microbatch = self.microbatches.current() if self.microbatches is not None else None
            if microbatch is None or self.microbatches is None:
                self.weights.open(index)
            else:
                self.microbatches.wait(microbatch, index)
            return forward(*args, **kwargs)

        return passed

    def _head(self, states: torch.Tensor) -> torch.Tensor:
        microbatch = self.microbatches.current() if self.microbatches is not None else None
        if microbatch is None or self.microbatches is None:
            return self.heads([states])[0]
        products: torch.Tensor = self.microbatches.wait(microbatch, -1, states)
        return products

    def _count(self, *_: Any) -> None:
        self.weights.sweeps += 1
