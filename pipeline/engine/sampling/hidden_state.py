"""What the model has made of a prompt: the hidden state at its last token, from which its head computes the
next logits.

It is there anyway when labels are scored, and says more about a document than the few logits of the labels: a
linear probe on it is what a calibration by gold labels is fitted with (Alain and Bengio, "Understanding
intermediate layers using linear classifier probes", 2016).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

MOST_FEATURES = 1024
"""Wider states are sketched down to this many numbers, so that a ledger of a million documents stays on a
small disk.
"""

_HALF_MOST = 65504.0
# 2^32 over the golden ratio: spreads consecutive numbers (Knuth, "The Art of Computer Programming", volume 3,
# 6.4)
_MIX = 0x9E3779B1

# Several batches may be in one model at once; each sees what it has asked the head itself.
_watching: ContextVar[HiddenStateHook | None] = ContextVar("watching", default=None)


class HiddenStateHook:
    """The input of a model's head at its last pass, (rows, columns, hidden), or None where the model does not
    show it.
    """

    def __init__(self) -> None:
        self.seen: torch.Tensor | None = None

    def __call__(self, _module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """Called by the head before it computes."""
        if (
            _watching.get() is self
            and inputs
            and isinstance(inputs[0], torch.Tensor)
            and inputs[0].dim() == 3
        ):  # rows, columns, hidden
            self.seen = inputs[0]


@contextmanager
def watched(model: Any, *, wanted: bool = True) -> Iterator[HiddenStateHook]:
    """While inside, the states that ``model``'s head is given are seen."""
    watch = HiddenStateHook()
    head = model.get_output_embeddings() if wanted else None
    if head is None:
        yield watch
        return
    handle = head.register_forward_pre_hook(watch)
    token = _watching.set(watch)
    try:
        yield watch
    finally:
        _watching.reset(token)
        handle.remove()


def packed(state: torch.Tensor) -> bytes:
    """A state (hidden,) as little-endian float16, at most ``MOST_FEATURES`` of them; empty where it is not
    finite.
    """
    values = state.detach().float().cpu()
    if not bool(values.isfinite().all()):
        return b""
    if len(values) > MOST_FEATURES:
        values = _sketched(values)
    data: bytes = values.clamp(-_HALF_MOST, _HALF_MOST).half().numpy().astype("<f2").tobytes()
    return data


def _sketched(values: torch.Tensor) -> torch.Tensor:
    """Every number is added to one place of ``MOST_FEATURES``, with a sign; place and sign depend on its
    index alone.

    Inner products are kept in expectation (count sketch: Charikar, Chen and Farach-Colton, 2002).
    """
    mixed = (torch.arange(len(values), dtype=torch.int64) * _MIX) & 0xFFFFFFFF
    signs = 1.0 - 2.0 * ((mixed >> 7) & 1).float()
    return torch.zeros(MOST_FEATURES).index_add_(0, (mixed >> 12) % MOST_FEATURES, values * signs)
