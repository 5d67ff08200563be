"""Gates in a model, which are hooks on its layers: before one computes, its weights are there. Outside of
micro-batches they are loaded at once; a micro-batch waits, so that one load serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pipeline.engine.streaming.microbatch_scheduler import MicrobatchScheduler
from pipeline.engine.streaming.weight_prefetcher import WeightPrefetcher


class LayerHooks:
    """The gates of one model. Every call passes on its own, except those of micro-batches inside
    ``waiting_for``.
    """

    def __init__(self, model: Any, weights: WeightPrefetcher) -> None:
        self.weights = weights
        self._microbatches: MicrobatchScheduler[Any] | None = None
        for path, index in weights.by_module.items():
            module = model.get_submodule(path)
            module.forward = self._gated(module.forward, index)
        if weights.head_units:
            self._module = model.get_submodule(weights.head_path)
            self._module.forward = self._head
        else:  # a head that is small enough to stay
            model.register_forward_hook(self._count)

    @contextmanager
    def waiting_for(self, microbatches: MicrobatchScheduler[Any]) -> Iterator[None]:
        """Inside, calls that come out of one of ``microbatches`` wait at each gate for the others."""
        self._microbatches = microbatches
        try:
            yield
        finally:
            self._microbatches = None

    def heads(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The head's products with ``inputs``, for which its matrix is read once."""
        return self.weights.head(inputs, self._module.bias)

    def _gated(self, forward: Callable[..., Any], index: int) -> Callable[..., Any]:
        def passed(*args: Any, **kwargs: Any) -> Any:
            microbatch = self._microbatches.current() if self._microbatches is not None else None
            if microbatch is None or self._microbatches is None:
                self.weights.open(index)
            else:
                self._microbatches.wait(microbatch, index)
            return forward(*args, **kwargs)

        return passed

    def _head(self, states: torch.Tensor) -> torch.Tensor:
        microbatch = self._microbatches.current() if self._microbatches is not None else None
        if microbatch is None or self._microbatches is None:
            return self.heads([states])[0]
        products: torch.Tensor = self._microbatches.wait(microbatch, -1, states)
        return products

    def _count(self, *_: Any) -> None:
        self.weights.sweeps += 1
