"""Caches: rows selected and joined without touching their source, growth in place, the offloaded tier."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.engine.kv.cache import (
    AnyCache,
    GrowingLayer,
    HostLayer,
    HostSlidingLayer,
    OffloadedCache,
    can_join,
    join_rows,
    make_cache,
    select_rows,
    tensors,
)
from tests.equivalence.families import FAMILIES, RECURRENT, prompts, tiny_model

CPU = torch.device("cpu")
PLACEMENTS = ("device", "offloaded")
SOME = (
    "llama (GQA)",
    "mistral (sliding window)",
    "gemma3 (sliding and full)",
    "qwen3_next (hybrid)",
    "mamba2 (recurrent)",
)


def read(model: Any, cache: AnyCache, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model(ids, cache=cache, use_cache=True).logits[:, -1]


def sums(cache: AnyCache) -> list[tuple[tuple[int, ...], float]]:
    return [(tuple(tensor.shape), float(tensor.double().abs().sum())) for tensor in tensors(cache)]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("family", SOME)
def test_selected_rows_continue_alike_and_leave_the_source_alone(family: str, placement: Any) -> None:
    model = tiny_model(family)
    ids = torch.tensor(prompts((40, 40, 40)))
    cache = make_cache(model.config, placement, CPU, reserve_columns=64)
    read(model, cache, ids)
    before = sums(cache)
    chosen = select_rows(cache, [2, 0, 0], reserve_columns=50)
    following = torch.tensor(prompts((5, 5, 5), seed=7))
    found = read(model, chosen, following)
    assert sums(cache) == before
    whole = make_cache(model.config, placement, CPU)
    expected = read(model, whole, torch.cat([ids[[2, 0, 0]], following], dim=1))
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
    # the source goes on for itself, unharmed by its copy
    read(model, cache, torch.tensor(prompts((5, 5, 5), seed=8)))
    assert sums(cache) != before


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("family", SOME)
def test_joined_rows_continue_like_each_part(family: str, placement: Any) -> None:
    model = tiny_model(family)
    parts, ends = [], []
    for seed in (1, 2):
        cache = make_cache(model.config, placement, CPU)
        ids = torch.tensor(prompts((30, 30), seed=seed))
        read(model, cache, ids)
        parts.append(cache)
        ends.append(read(model, select_rows(cache, [0, 1]), torch.tensor([[5], [6]])))
    assert all(can_join(part) for part in parts)
    whole = join_rows(parts, reserve_columns=40)
    # one layer exists twice at a time
    assert all(not list(tensors(part)) for part in parts) or family in RECURRENT
    torch.testing.assert_close(
        read(model, whole, torch.tensor([[5], [6], [5], [6]])), torch.cat(ends), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_shorter_parts_are_padded_on_the_left(placement: Any) -> None:
    model = tiny_model("mistral (sliding window)")
    parts = []
    for length in (40, 7):
        cache = make_cache(model.config, placement, CPU)
        read(model, cache, torch.tensor(prompts((length,))))
        parts.append(cache)
    short_keys = parts[1].layers[0].keys.clone()
    whole = join_rows(parts)
    keys = whole.layers[0].keys
    assert whole.get_seq_length() == 40
    assert torch.equal(keys[1:, :, -7:], short_keys)
    assert not keys[1:, :, :-7].any()


def test_growth_is_in_place_within_the_reserve_and_right_beyond_it() -> None:
    layer = GrowingLayer(reserve_columns=6)
    columns = torch.arange(40.0).reshape(1, 2, 20, 1)
    layer.update(columns[:, :, :4], columns[:, :, :4])
    start = layer.keys.data_ptr()
    layer.update(columns[:, :, 4:6], columns[:, :, 4:6])
    assert layer.keys.data_ptr() == start
    moves = set()
    for index in range(6, 20):
        keys, values = layer.update(columns[:, :, index : index + 1], -columns[:, :, index : index + 1])
        moves.add(keys.data_ptr())
    assert torch.equal(keys, columns)
    assert torch.equal(values[:, :, 6:], -columns[:, :, 6:])
    assert 1 < len(moves) <= 7
    layer.crop(-15)
    keys, _ = layer.update(columns[:, :, 10:12], columns[:, :, 10:12])
    assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 4, 10, 11]


def test_offloaded_layers_are_ours_and_fetched_ahead() -> None:
    """Without CUDA the library's offloaded cache is never asked for; the next layer's copy is under way while
    one computes.
    """
    model = tiny_model("gemma3 (sliding and full)")
    cache = make_cache(model.config, "offloaded", CPU)
    assert isinstance(cache, OffloadedCache)
    assert not cache.offloading
    assert [type(layer) for layer in cache.layers] == [HostSlidingLayer, HostLayer, HostSlidingLayer]
    read(model, cache, torch.tensor(prompts((30,))))
    keys = torch.ones(1, 2, 1, 16)
    first, second, third = cache.layers
    assert first._pending is not None  # fetched at the end of the pass for the next one
    cache.update(keys, keys, 0)
    assert first._pending is None
    assert second._pending is not None
    assert third._pending is None
    copied = second._pending.result()[0]
    assert torch.equal(copied, second.keys)
    assert copied.data_ptr() != second.keys.data_ptr()


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in SOME else pytest.mark.full) for name in FAMILIES]
)
def test_columns_seen(family: str) -> None:
    model = tiny_model(family)
    cache = make_cache(model.config, "device", CPU)
    read(model, cache, torch.tensor(prompts((30,))))
    read(model, cache, torch.tensor(prompts((3,))))
    seen = [layer.get_seq_length() for layer in cache.layers if hasattr(layer, "get_seq_length")]
    assert max(seen, default=0) == (0 if family == "mamba2 (recurrent)" else 33)
