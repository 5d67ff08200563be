"""Keys and values while a batch runs: the only module that touches transformers' cache classes.

Tiers of one idea, a list of layers that are appended to and read in order:

- ``device``: full-attention layers write into storage reserved for the whole batch (``GrowingLayer``) instead
  of copying all columns for every new token, as concatenation does; sliding-window and recurrent layers are
  the library's.
- ``offloaded`` beside a card: ``PinnedLayer``, whose columns lie in pinned host memory and pass through two
  buffers on the card; what a sliding window or a recurrent layer keeps is small and stays there. The
  library's own offloaded cache brings every layer home whole in every pass, into memory twice its size, and
  hands out copies that are still under way.
- ``disk``: ``DiskLayer``, one file a layer; what a sliding window or a recurrent layer keeps is small and
  stays in memory.
- ``quantized``: the library's 8-bit floating point layers, on the device; only for models whose layers are
  all full attention. Its 4-bit layers refuse caches whose width times rows is no multiple of their groups,
  and quantize all columns again every 128 tokens.
- ``offloaded`` elsewhere: ``OffloadedCache``. A layer's columns live in host memory. While layer i computes,
  one thread copies layer i + 1 beside it; the copy is joined with the new columns, used once and dropped, and
  only the new columns are written back. At any time at most two layers have a copy. On a CPU the "device" is
  the same memory, so this costs copies and gains nothing: it is there so that the path is exercised, and so
  that a layer whose columns come from disk can take its place.

Rows of a cache are selected, expanded and joined into new caches; nothing here changes its argument.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    QuantizedCache,
)

from pipeline.engine.kv.disk_layer import DiskLayer
from pipeline.engine.kv.pinned_layer import PinnedLayer, linked
from pipeline.engine.out_of_memory import give_back_pieces
from pipeline.records import KvPlacement

AnyCache = Cache
_KeysValues = tuple[torch.Tensor, torch.Tensor]
_prefetcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kv-prefetch")


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # the library's subclass hook has no types
    """Full attention. Keys and values are views of storage with room for ``reserve_columns``; beyond that it
    grows by a quarter.
    """

    def __init__(self, reserve_columns: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library's constructor has no types
        self._reserve_columns = reserve_columns
        self._storage: dict[str, torch.Tensor] = {}

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> _KeysValues:
        """Append (rows, heads, new columns, width); returns all columns."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys = self.keys = self._append("keys", self.keys, key_states)
        values = self.values = self._append("values", self.values, value_states)
        return keys, values

    def _append(self, name: str, live: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        columns = live.shape[-2] if live is not None and live.numel() else 0
        total = columns + new.shape[-2]
        storage = self._storage.get(name)
        owned = (
            storage is not None
            and live is not None
            and live.data_ptr() == storage.data_ptr()
            and len(live) == len(storage)
        )
        if storage is None or not owned or total > storage.shape[-2]:
            grown = total + total // 4 if owned else total
            storage = new.new_empty((*new.shape[:-2], max(grown, self._reserve_columns), new.shape[-1]))
            if live is not None and columns:
                storage[..., :columns, :].copy_(live)
            self._storage[name] = storage
        storage[..., columns:total, :].copy_(new)
        return storage[..., :total, :]

    def reserve(self, columns: int) -> None:
        """From the next copy on, have room for ``columns`` in all."""
        self._reserve_columns = max(self._reserve_columns, columns)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Rows ``beam_idx``, copied into new storage with the reserved room; the old one is let go."""
        if self.keys is not None and self.values is not None and self.keys.numel():
            self._storage = {}
            self.keys = self._rows("keys", self.keys, beam_idx)
            self.values = self._rows("values", self.values, beam_idx)

    def _rows(self, name: str, live: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        columns = live.shape[-2]
        shape = (len(index), live.shape[1], max(columns, self._reserve_columns), live.shape[-1])
        self._storage[name] = live.new_empty(shape)
        view = self._storage[name][..., :columns, :]
        torch.index_select(live, 0, index.to(live.device), out=view)
        return view


class _HostTier:
    """Mixin over a layer class: the layer's own tensors stay on the host, a copy is made for each use on
    ``compute_device``.
    """

    compute_device: torch.device | None = None
    _pending: Future[_KeysValues] | None = None
    keys: Any
    values: Any

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> _KeysValues:
        """Append to the host; returns earlier and new columns on the device of the new ones."""
        self.compute_device = key_states.device
        near = self._take()
        # the layer class mixed in has it
        super().update(key_states.to("cpu"), value_states.to("cpu"))  # type: ignore[misc]
        if near is None:
            return key_states, value_states
        return torch.cat([near[0], key_states], dim=-2), torch.cat([near[1], value_states], dim=-2)

    def start_fetch(self) -> None:
        """Begin to copy this layer to where it computes, if it holds anything."""
        if self._pending is None and self._holds_columns():
            self._pending = _prefetcher.submit(self._near_copy)

    def forget_fetched(self) -> None:
        """A copy under way is of other rows or columns than the layer is about to hold."""
        self._pending = None

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Rows ``beam_idx``."""
        self.forget_fetched()
        super().reorder_cache(beam_idx)  # type: ignore[misc]

    def crop(self, tokens_to_remove: int) -> None:
        """Remove columns (a negative number of them)."""
        self.forget_fetched()
        super().crop(tokens_to_remove)  # type: ignore[misc]

    def _holds_columns(self) -> bool:
        return self.keys is not None and bool(self.keys.numel())

    def _take(self) -> _KeysValues | None:
        pending, self._pending = self._pending, None
        if pending is not None:
            return pending.result()
        return self._near_copy() if self._holds_columns() else None

    def _near_copy(self) -> _KeysValues:
        with torch.inference_mode():  # the mode is per thread
            keys = self.keys.to(self.compute_device, copy=True)
            return keys, self.values.to(self.compute_device, copy=True)


class HostLayer(_HostTier, GrowingLayer):  # type: ignore[no-untyped-call]  # as above
    """Full attention in host memory."""


class HostSlidingLayer(_HostTier, DynamicSlidingWindowLayer):  # type: ignore[no-untyped-call]  # as above
    """Sliding window in host memory."""


class OffloadedCache(DynamicCache):
    """Layers in host memory or on disk, each fetched while the one before it computes."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> _KeysValues:
        """Start to fetch the next layer, then extend and return this one."""
        following = self.layers[(layer_idx + 1) % len(self.layers)]
        if isinstance(following, _HostTier | DiskLayer) and following is not self.layers[layer_idx]:
            following.start_fetch()
        result: _KeysValues = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return result


def make_cache(
    config: Any,
    placement: KvPlacement,
    device: torch.device,
    reserve_columns: int = 0,
    folder: Path | None = None,
) -> AnyCache:
    """An empty cache for a model of ``config`` whose inputs are on ``device``, with room for
    ``reserve_columns``; ``folder``: see ``DiskLayer``.

    Raises ValueError where ``quantized`` is not for this model.
    """
    if placement == "quantized":
        return QuantizedCache(backend="fp8", config=config)
    if placement == "offloaded" and device.type == "cuda":
        return _pinned(config, reserve_columns)
    cache = OffloadedCache(config=config) if placement != "device" else DynamicCache(config=config)
    cache.layers = [_placed(layer, placement, reserve_columns, folder) for layer in cache.layers]
    return cache


def _pinned(config: Any, reserve_columns: int) -> AnyCache:
    cache = DynamicCache(config=config)
    # Layers without keys of their own attend to those that an earlier one got in the same pass.
    lent = not getattr(config.get_text_config(decoder=True), "num_kv_shared_layers", 0)
    cache.layers = [
        PinnedLayer(reserve_columns, lent=lent) if type(layer) is DynamicLayer else layer
        for layer in cache.layers
    ]
    linked(cache.layers)
    return cache


def _placed(layer: Any, placement: KvPlacement, reserve_columns: int, folder: Path | None) -> Any:
    if type(layer) is DynamicLayer and placement == "disk":
        return DiskLayer(folder)
    if type(layer) is DynamicLayer:
        return HostLayer(reserve_columns) if placement == "offloaded" else GrowingLayer(reserve_columns)
    if type(layer) is DynamicSlidingWindowLayer and placement == "offloaded":
        return HostSlidingLayer(layer.sliding_window)
    return layer


def needs_equal_lengths(config: Any) -> bool:
    """Whether rows of different lengths must not share a batch: padding would run through a recurrent state.

    True unless every layer is full, sliding-window or chunked attention (or keeps nothing), and for unknown
    kinds of layer.
    """
    try:
        layers = DynamicCache(config=config).layers
    except (KeyError, ValueError, AttributeError):
        return True
    return not layers or any(
        type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer) for layer in layers
    )


def can_join(cache: AnyCache) -> bool:
    """Whether ``join_rows`` knows every kind of layer in ``cache``."""
    return all(
        isinstance(layer, DummyLayer) or _is_attention(layer) or type(layer) is LinearAttentionLayer
        for layer in cache.layers
    )


def _is_attention(layer: Any) -> bool:
    return type(layer) in (
        DynamicLayer,
        DynamicSlidingWindowLayer,
        GrowingLayer,
        HostLayer,
        HostSlidingLayer,
        PinnedLayer,
    )


def tensors(cache: AnyCache) -> Iterator[torch.Tensor]:
    """Everything the cache holds, layer by layer: keys and values, or convolution and recurrent states."""
    for layer in cache.layers:
        if isinstance(layer, PinnedLayer) and layer.block is not None:
            yield from layer.on_host()
            continue
        states = [getattr(layer, "keys", None), getattr(layer, "values", None)]
        states += [
            *getattr(layer, "conv_states", {}).values(),
            *getattr(layer, "recurrent_states", {}).values(),
        ]
        yield from (state for state in states if isinstance(state, torch.Tensor) and state.numel())


def select_rows(cache: AnyCache, rows: Sequence[int], reserve_columns: int = 0) -> AnyCache:
    """A new cache of ``rows`` of ``cache``, in that order, repeats allowed (expansion), with room for
    ``reserve_columns``.

    The tensors are copies: growing the new cache leaves the old one as it is.
    """
    selected = copy.copy(cache)
    selected.layers = [_unshared(layer) for layer in cache.layers]
    index = torch.tensor(list(rows), dtype=torch.long)
    for layer in selected.layers:
        if isinstance(layer, GrowingLayer | PinnedLayer):
            layer.reserve(reserve_columns)
        _reorder(layer, index)
    linked(selected.layers)
    return selected


def keep_rows(cache: AnyCache, rows: Sequence[int]) -> None:
    """Let go of all but ``rows`` of ``cache``, in that order; only one layer exists twice at a time."""
    index = torch.tensor(list(rows), dtype=torch.long)
    for layer in cache.layers:
        _reorder(layer, index)


def _reorder(layer: Any, index: torch.Tensor) -> None:
    # Layers of a family that shares keys and values may never have been filled.
    if getattr(layer, "is_initialized", True) and not isinstance(layer, DummyLayer):
        layer.reorder_cache(index)


def _unshared(layer: Any) -> Any:
    """A shallow copy whose dictionaries of states are its own."""
    twin = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            setattr(twin, name, dict(value))
    return twin


def join_rows(caches: Sequence[AnyCache], reserve_columns: int = 0) -> AnyCache:
    """One cache with the rows of all, in order; shorter ones are padded with zeros on the left, which the
    mask must cover.

    The layers of ``caches`` are emptied one by one as they are copied, so that only one layer exists twice at
    a time.
    """
    joined = copy.copy(caches[0])
    joined.layers = []
    for index in range(len(caches[0].layers)):
        give_back_pieces()
        joined.layers.append(_joined_layer([cache.layers[index] for cache in caches], reserve_columns))
    linked(joined.layers)
    return joined


def _joined_layer(layers: Sequence[Any], reserve_columns: int) -> Any:
    joined = _unshared(max(layers, key=_layer_columns))
    if isinstance(joined, PinnedLayer):
        joined.join(layers, reserve_columns)
    elif isinstance(joined, LinearAttentionLayer):
        for states in ("conv_states", "recurrent_states"):
            parts = [getattr(layer, states) for layer in layers]
            setattr(joined, states, {key: _stacked([part[key] for part in parts]) for key in parts[0]})
    elif not isinstance(joined, DummyLayer) and joined.is_initialized:
        if isinstance(joined, _HostTier):
            joined.forget_fetched()
        joined.keys = _left_joined(
            [layer.keys for layer in layers], getattr(joined, "_storage", None), "keys", reserve_columns
        )
        joined.values = _left_joined(
            [layer.values for layer in layers], getattr(joined, "_storage", None), "values", reserve_columns
        )
        for layer in layers:
            layer.reset()
            getattr(layer, "_storage", {}).clear()
    return joined


def _layer_columns(layer: Any) -> int:
    return int(layer.get_seq_length()) if hasattr(layer, "get_seq_length") else 0


def _stacked(states: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    present = [state for state in states if state is not None]
    return torch.cat(present) if present else None


def _left_joined(
    parts: Sequence[torch.Tensor], storage: dict[str, torch.Tensor] | None, name: str, reserve: int
) -> torch.Tensor:
    """(all rows, heads, longest, width); into storage with room for ``reserve`` columns where the layer has
    one.
    """
    columns = max(part.shape[-2] for part in parts)
    shape = (
        sum(len(part) for part in parts),
        parts[0].shape[1],
        columns if storage is None else max(columns, reserve),
        parts[0].shape[-1],
    )
    joined = parts[0].new_zeros(shape)
    row = 0
    for part in parts:
        joined[row : row + len(part), :, columns - part.shape[-2] : columns].copy_(part)
        row += len(part)
    if storage is not None:
        storage[name] = joined
    return joined[:, :, :columns]
