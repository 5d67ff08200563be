"""Attention over a packed pass: tokens of many documents in one row, without padding, without a dense mask,
without copies.

A pass holds the next tokens of decoding rows and the prompts of newcomers, end to end (``pass_layout``). The
model runs on it as on one sequence; only its attention knows which token belongs to which document. It is
registered with transformers under ``IMPLEMENTATION``, so that any family which calls attention through that
interface can be driven this way.

Each token attends to disjoint stretches of keys: the shared beginnings of its prompt (one copy for
everybody), what its row has cached in its run, and its own neighbours in the pass; the results are joined by
their log-sum-exps (``kernels``). How that is computed is chosen by the device: ``attend_by_views`` on a
processor.

Shapes: T tokens of the pass, H query heads, G KV heads, D head width; q is (1, H, T, D), k and v (1, G, T,
D).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from pipeline.engine.packed.page_pool import Forms
from pipeline.engine.packed.pass_layout import PassLayout

IMPLEMENTATION = "overnight_packed"
_CONTEXT = "overnight_pass"  # the attribute of a module that holds its model's context
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


class PassAttention(Protocol):
    """The attention of all layers in one pass."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Output (1, T, H, D) of one layer, whose keys and values are kept as the pass says."""
        ...


@dataclass(slots=True)
class Pass:
    """Who sees what in one forward pass, and how that is computed."""

    layout: PassLayout
    attention: PassAttention

    @property
    def only_decodes(self) -> bool:
        """Whether no prompt and no tree is read in it."""
        return self.layout.only_decodes


class PassContext:
    """Which pass a forward call of one model is about; None while the model runs in any other way.

    The model's attention modules hold it, so that models in one process know nothing of each other's passes.
    """

    def __init__(self) -> None:
        self.current: Pass | None = None
        self.forms: Forms = {}
        """What each layer keeps of a token, once a pass has shown it."""

    @contextmanager
    def running(self, current: Pass) -> Iterator[None]:
        """Inside, forward calls of the model are about ``current``. One at a time."""
        assert self.current is None, "a packed pass inside of another one of the same model"
        self.current = current
        try:
            yield
        finally:
            self.current = None


def context_of(model: Any) -> PassContext:
    """The context of ``model``, which all its attention modules hold from now on."""
    held = getattr(model, _CONTEXT, None)
    context = held if isinstance(held, PassContext) else PassContext()
    for module in (model, *(module for module in model.modules() if hasattr(module, "layer_idx"))):
        setattr(module, _CONTEXT, context)
    return context


def current(model: Any) -> Pass | None:
    """The packed pass that ``model`` is in, None while it runs in any other way."""
    held = getattr(model, _CONTEXT, None)
    return held.current if isinstance(held, PassContext) else None


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,  # noqa: ARG001  # the interface's signature; always None here
    scaling: float,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer for the current pass; returns (1, T, H, D). Raises ValueError for kinds of
    attention it does not do.
    """
    unknown = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if unknown:
        raise ValueError(f"packed attention does not know {', '.join(unknown)}")
    running: Pass | None = getattr(module, _CONTEXT).current
    assert running is not None, "packed attention outside of a pass"
    return running.attention.attend(module.layer_idx, query, key, value, scaling), None


# Not with AttentionMaskInterface, too: the library makes no masks for a way of attention that is not known
# there; else it asks in every pass, with a wait for the device, whether its positions are of several rows.
AttentionInterface.register(IMPLEMENTATION, packed_attention)
