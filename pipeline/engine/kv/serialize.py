"""One row's cache to named tensors and back, for every kind of layer that the library's dynamic cache may
hold. With ``cache``, the only module that knows those classes.

Full attention keeps something for each token: ranges ``L3.k``, ``L3.v`` of shape (heads, tokens, width). A
sliding window keeps the last columns, a recurrent layer its states: those are whole as of the last token, and
only a cache that ends just there may be taken up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from pipeline.engine.kv.cache import (
    AnyCache,
    GrowingLayer,
    HostLayer,
    HostSlidingLayer,
    make_cache,
)
from pipeline.engine.kv.pinned_layer import PinnedLayer
from pipeline.records import KvPlacement

_FULL = (DynamicLayer, GrowingLayer, HostLayer, PinnedLayer)
_SLIDING = (DynamicSlidingWindowLayer, HostSlidingLayer)
_Tensors = dict[str, torch.Tensor]
_STATE = re.compile(r"L(\d+)\.(conv|recurrent)(\d+)")


def unknown_layers(cache: AnyCache) -> str | None:
    """The kinds of layer that cannot be taken apart, None where all can."""
    known = (*_FULL, *_SLIDING, LinearAttentionLayer, DummyLayer)
    names = sorted({type(layer).__name__ for layer in cache.layers if type(layer) not in known})
    return ", ".join(names) if names or not cache.layers else None


def row_tensors(cache: AnyCache, begin: int) -> tuple[_Tensors, _Tensors]:
    """(ranges of the tokens from ``begin``, states) of a cache of one row without padding; copies. Waits for
    what is still on its way to host memory.
    """
    ranges: _Tensors = {}
    states: _Tensors = {}
    for number, layer in enumerate(cache.layers):
        if type(layer) is LinearAttentionLayer:
            states |= _recurrent_tensors(number, layer)
        elif isinstance(layer, PinnedLayer) and layer.columns:
            for name, held in zip("kv", layer.on_host(), strict=True):
                ranges[f"L{number}.{name}"] = held[0, :, begin:].clone()
        elif isinstance(layer, DynamicLayer) and layer.keys is not None and layer.keys.numel():
            sliding = isinstance(layer, DynamicSlidingWindowLayer)
            for name, kept in (("k", layer.keys), ("v", layer.values)):
                assert kept is not None
                (states if sliding else ranges)[f"L{number}.{name}"] = (
                    kept[0].clone() if sliding else kept[0, :, begin:].clone()
                )
    return ranges, states


def _recurrent_tensors(number: int, layer: Any) -> _Tensors:
    found = {f"L{number}.conv{index}": state for index, state in layer.conv_states.items()}
    found |= {f"L{number}.recurrent{index}": state for index, state in layer.recurrent_states.items()}
    return {name: state[0].clone() for name, state in found.items() if state is not None}


def restored(
    config: Any,
    placement: KvPlacement,
    device: torch.device,
    tokens: int,
    parts: Sequence[Mapping[str, torch.Tensor]],
    reserve_columns: int,
    layer_devices: Sequence[torch.device] = (),
) -> AnyCache:
    """A cache of one row that has seen ``tokens``, of the tensors in ``parts``, with room for
    ``reserve_columns``, each layer's where it computes (``layer_devices``; empty: on ``device``). Of an
    offloaded one nothing touches a card but what is always there.
    """
    cache = make_cache(config, placement, device, reserve_columns)
    tensors = {name: tensor for part in parts for name, tensor in part.items()}
    for number, layer in enumerate(cache.layers):
        here = layer_devices[number] if number < len(layer_devices) else device
        if type(layer) is LinearAttentionLayer:
            _fill_recurrent(number, layer, tensors, here)
        elif f"L{number}.k" in tensors and isinstance(layer, PinnedLayer):
            layer.fill(tensors[f"L{number}.k"][None].cpu(), tensors[f"L{number}.v"][None].cpu())
        elif f"L{number}.k" in tensors and isinstance(layer, DynamicLayer):
            keys, values = (tensors[f"L{number}.{name}"][None].to(here) for name in "kv")
            layer.update(keys, values)
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.cumulative_length = tokens
    return cache


def _fill_recurrent(
    number: int, layer: Any, tensors: Mapping[str, torch.Tensor], device: torch.device
) -> None:
    for name, tensor in tensors.items():
        found = _STATE.fullmatch(name)
        if found is None or int(found[1]) != number:
            continue
        state, index = tensor[None].to(device), int(found[3])
        if found[2] == "conv":
            layer.update_conv_state(state, state_idx=index)
        else:
            layer.update_recurrent_state(state, state_idx=index)
        layer.has_previous_state[index] = True
