"""Attention over a packed pass: tokens of many documents in one row, without padding, without a dense mask,
without copies.

A pass (``Pass``) holds the next tokens of decoding rows and the prompts of newcomers, end to end. The model
runs on it as on one sequence; only this function knows which token belongs to which document. It is
registered with transformers under ``IMPLEMENTATION``, so that any family which calls attention through that
interface can be driven this way.

Each token attends to up to three disjoint stretches of keys: the task's shared prefix (one copy for
everybody), what its row has cached in its slot, and its own neighbours in the pass. Each stretch is one
kernel call over all tokens that see it; the results are joined by their log-sum-exps, which is exact: softmax
over a union is the mean of the softmaxes weighted by exp(lse) (Dao et al., FlashAttention, 2022, section 3.1;
Juravsky et al., Hydragen, 2024, for shared prefixes).

Shapes: T tokens of the pass, H query heads, G KV heads, D head width; q is (1, H, T, D), k and v (1, G, T,
D).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface

from pipeline.engine.kv.slot_pool import SlotClass

IMPLEMENTATION = "overnight_packed"
_CONTEXT = "overnight_pass"  # the attribute of a module that holds its model's context
_KeysValues = tuple[torch.Tensor, torch.Tensor]
_PLAIN_QUERIES = 256
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


@dataclass(slots=True)
class Prefix:
    """Keys and values of a shared beginning, by layer: (1, G, tokens, D). Filled once, then only read."""

    tokens: int
    layers: dict[int, _KeysValues] = field(default_factory=dict)


@dataclass(slots=True)
class Fresh:
    """Prompts (or parts of them) in the pass, padded to one rectangle only inside attention.

    ``index`` (rows, longest) gathers their tokens from the pass, padding repeats the last one; ``real`` marks
    the others, flat. ``visible`` (rows, 1, longest, longest) is None where plain causality holds (padding on
    the right needs no mask), else what each token sees of its own row: trees of label continuations.
    """

    index: torch.Tensor
    real: torch.Tensor
    tokens: torch.Tensor
    visible: torch.Tensor | None = None


@dataclass(slots=True)
class Cached:
    """Tokens of the pass that see what rows of one slot class have cached.

    ``tokens`` (n, q) are indices into the pass, q tokens a row; ``slots`` (n,) their slots; ``lengths`` (n,)
    the cached columns each row may see, ``longest`` their maximum.
    """

    storage: SlotClass
    tokens: torch.Tensor
    slots: torch.Tensor
    lengths: torch.Tensor
    longest: int
    mask: torch.Tensor | None = None


@dataclass(slots=True)
class Writing:
    """Tokens of the pass whose keys and values are kept: pass index, slot and column of each, all (n,)."""

    storage: SlotClass
    tokens: torch.Tensor
    slots: torch.Tensor
    columns: torch.Tensor


@dataclass(slots=True)
class Pass:
    """Who sees what in one forward pass. ``prefixes`` pairs a prefix with the tokens (n,) that see it, None
    for all of them.
    """

    tokens: int
    prefixes: list[tuple[Prefix, torch.Tensor | None]] = field(default_factory=list)
    writing: list[Writing] = field(default_factory=list)
    cached: list[Cached] = field(default_factory=list)
    fresh: list[Fresh] = field(default_factory=list)
    filling: Prefix | None = None

    @property
    def only_decodes(self) -> bool:
        """Whether no prompt and no tree is read in it."""
        return not self.fresh and self.filling is None

    @property
    def padded(self) -> int:
        """Places of its rectangles that hold no token; they cost attention, no matrix product of the
        model.
        """
        return sum(fresh.index.numel() - fresh.real.numel() for fresh in self.fresh)


class PassContext:
    """Which pass a forward call of one model is about; None while the model runs in any other way.

    The model's attention modules hold it, so that models in one process know nothing of each other's passes.
    """

    def __init__(self) -> None:
        self.current: Pass | None = None

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
    layer = module.layer_idx
    for writing in running.writing:
        writing.storage.write(
            layer, writing.slots, writing.columns, key[0, :, writing.tokens], value[0, :, writing.tokens]
        )
    joined = _Joined(query, value.shape[-1])
    for fresh in running.fresh:
        _attend_fresh(joined, query, key, value, fresh, scaling)
    for cached in running.cached:
        _attend_cached(joined, layer, query, cached, scaling)
    for prefix, tokens in running.prefixes:
        seen = query if tokens is None else query[:, :, tokens]
        joined.add(tokens, *_everything(seen, *prefix.layers[layer], scaling))
    if running.filling is not None:
        _fill(running.filling, layer, key, value)
    return joined.output.transpose(1, 2), None


def _fill(prefix: Prefix, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
    """Keep the pass as (more of) a shared prefix."""
    if layer in prefix.layers:
        held = prefix.layers[layer]
        prefix.layers[layer] = (torch.cat([held[0], key], dim=2), torch.cat([held[1], value], dim=2))
    else:
        prefix.layers[layer] = (key.contiguous(), value.contiguous())


def _attend_fresh(
    joined: _Joined, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, fresh: Fresh, scaling: float
) -> None:
    """Newcomers among themselves: causal, or by their tree masks."""
    rows, longest = fresh.index.shape
    if rows == 1 and longest == query.shape[2]:
        near, keys, values = query, key, value
    else:
        flat = fresh.index.reshape(-1)
        near, keys, values = (_rows(states, flat, rows, longest) for states in (query, key, value))
    output, lse = attend(near, keys, values, scaling, causal=fresh.visible is None, visible=fresh.visible)
    heads, width = output.shape[1], output.shape[-1]
    output = output.transpose(0, 1).reshape(1, heads, rows * longest, width)[:, :, fresh.real]
    lse = lse.transpose(0, 1).reshape(1, heads, rows * longest)[:, :, fresh.real]
    joined.add(fresh.tokens, output, lse)


def _rows(states: torch.Tensor, flat: torch.Tensor, rows: int, longest: int) -> torch.Tensor:
    """(1, heads, T, D) gathered to (rows, heads, longest, D)."""
    heads, width = states.shape[1], states.shape[-1]
    return states[0].index_select(1, flat).view(heads, rows, longest, width).transpose(0, 1)


def _attend_cached(joined: _Joined, layer: int, query: torch.Tensor, cached: Cached, scaling: float) -> None:
    """Rows to their own slots.

    Query heads of one KV head, and the tokens of one row, are laid side by side as one stretch of queries:
    each key is read once.
    """
    rows, each = cached.tokens.shape
    keys, values = cached.storage.read(layer, cached.slots, cached.longest)
    groups = keys.shape[1]
    near = _rows(query, cached.tokens.reshape(-1), rows, each)
    heads = near.shape[1]
    stacked = near.reshape(rows, groups, heads // groups * each, -1)
    if cached.mask is None:
        columns = torch.arange(cached.longest, device=query.device)
        cached.mask = _added((columns[None, :] < cached.lengths[:, None])[:, None, None, :], query.dtype)
    output, lse = attend(stacked, keys, values, scaling, mask=cached.mask)
    output = output.reshape(rows, heads, each, -1).transpose(0, 1).reshape(1, heads, rows * each, -1)
    lse = lse.reshape(rows, heads, each).transpose(0, 1).reshape(1, heads, rows * each)
    joined.add(cached.tokens.reshape(-1), output, lse)


def _everything(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> _KeysValues:
    """All of (1, H, n, D) see all of (1, G, P, D)."""
    heads, tokens, groups = query.shape[1], query.shape[2], key.shape[1]
    output, lse = attend(query.reshape(1, groups, heads // groups * tokens, -1), key, value, scaling)
    return output.reshape(1, heads, tokens, -1), lse.reshape(1, heads, tokens)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    *,
    causal: bool = False,
    mask: torch.Tensor | None = None,
    visible: torch.Tensor | None = None,
) -> _KeysValues:
    """Softmax attention with its log-sum-exp: (n, H, q, D) and (n, H, q). Query heads may be a multiple of KV
    heads.

    ``mask`` is added to the scores; ``visible`` is the same in booleans.
    """
    if visible is not None:
        mask = _added(visible, query.dtype)
    if query.device.type == "cpu" and value.shape[-1] == key.shape[-1]:
        # the public one keeps the log-sum-exp
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
        result: _KeysValues = kernel(query, key, value, 0.0, causal, attn_mask=mask, scale=scaling)
        return result
    return _attend_plainly(query, key, value, scaling, causal=causal, mask=mask)


def _added(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask to add to scores: 0 where ``visible``, else minus infinity."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, float("-inf")
    )


def _attend_plainly(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    *,
    causal: bool,
    mask: torch.Tensor | None,
) -> _KeysValues:
    """The formula itself, in float32, a stretch of queries at a time, for devices without a kernel that
    returns the log-sum-exp.
    """
    outputs, lses = [], []
    for begin in range(0, query.shape[2], _PLAIN_QUERIES):
        some = query[:, :, begin : begin + _PLAIN_QUERIES]
        added = mask if mask is None or mask.shape[2] == 1 else mask[:, :, begin : begin + _PLAIN_QUERIES]
        output, lse = _attend_stretch(some, key, value, scaling, first=begin if causal else None, mask=added)
        outputs.append(output)
        lses.append(lse)
    return torch.cat(outputs, dim=2), torch.cat(lses, dim=2)


def _attend_stretch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    *,
    first: int | None,
    mask: torch.Tensor | None,
) -> _KeysValues:
    """``first`` is the position of the first query among the keys where each sees only keys up to its own
    place, else None.
    """
    rows, heads, queries, _ = query.shape
    groups, keys = key.shape[1], key.shape[2]
    stacked = query.reshape(rows, groups, heads // groups, queries, -1).float()
    scores = stacked @ key[:, :, None].float().transpose(-1, -2) * scaling
    if first is not None:
        places = torch.arange(keys, device=query.device)
        scores = scores.masked_fill(
            places[None, :] > first + torch.arange(queries, device=query.device)[:, None], float("-inf")
        )
    if mask is not None:
        scores = scores + mask[:, :, None]
    lse = scores.logsumexp(-1)
    output = (scores - lse[..., None]).exp() @ value[:, :, None].float()
    return output.reshape(rows, heads, queries, -1).to(query.dtype), lse.reshape(rows, heads, queries)


class _Joined:
    """Attention so far for every token of the pass: output (1, H, T, D) and log-sum-exp (1, H, T)."""

    def __init__(self, query: torch.Tensor, width: int) -> None:
        _, heads, tokens, _ = query.shape
        self.output = query.new_zeros(1, heads, tokens, width)
        self._lse = torch.full((1, heads, tokens), float("-inf"), dtype=torch.float32, device=query.device)

    def add(self, tokens: torch.Tensor | None, output: torch.Tensor, lse: torch.Tensor) -> None:
        """Join what ``tokens`` (None: all) saw of one more stretch of keys."""
        before_lse = self._lse if tokens is None else self._lse[:, :, tokens]
        together = torch.logaddexp(before_lse, lse.float())
        old = (before_lse - together).exp().to(output.dtype)[..., None]
        new = (lse - together).exp().to(output.dtype)[..., None]
        if tokens is None:
            self.output.mul_(old).add_(output * new)
            self._lse = together
        else:
            self.output[:, :, tokens] = self.output[:, :, tokens] * old + output * new
            self._lse[:, :, tokens] = together


# Not with AttentionMaskInterface, too: the library makes no masks for a way of attention that is not known
# there; else it asks in every pass, with a wait for the device, whether its positions are of several rows.
AttentionInterface.register(IMPLEMENTATION, packed_attention)
