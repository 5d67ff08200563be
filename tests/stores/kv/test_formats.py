from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.stores.kv import admin, formats
from pipeline.stores.kv.entry import Segment
from pipeline.stores.kv.formats import Coded
from pipeline.stores.kv.sizes import (
    FORMATS,
    KEY_GROUP_TOKENS,
    VALUE_GROUP_CHANNELS,
    StorageFormat,
    entry_bytes,
    tensor_bytes,
)
from tests.stores.kv.caches import MODEL, entry, equal, ids_of, opened

LOSSY: tuple[StorageFormat, ...] = ("fp16", "bf16", "int8", "int4")


def tensor(seed: int, shape: tuple[int, ...], spread: float, offset: float) -> torch.Tensor:
    """Channels of very different size, as keys have them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * torch.logspace(-spread, spread, shape[-1]) + offset


def through(given: torch.Tensor, name: str, storage_format: StorageFormat) -> torch.Tensor:
    coded = Coded.of(name, given, storage_format)
    parts = formats.encode(given, coded)
    assert [tuple(part.shape) for part in parts] == [part.shape for part in coded.parts()]
    stored = sum(part.numel() * part.element_size() for part in parts)
    assert stored == tensor_bytes(given.shape, given.element_size(), storage_format, formats.role(name))
    back = formats.decode(parts, coded)
    assert (back.shape, back.dtype) == (given.shape, given.dtype)
    return back


def half_steps(before: torch.Tensor, name: str, storage_format: StorageFormat) -> torch.Tensor:
    """For each element half a step of its group, whose range is divided into so many; a little more, as the
    scales are in float16.
    """
    levels = {"int8": 255, "int4": 15}[storage_format]
    axis, size = (-2, KEY_GROUP_TOKENS) if name.endswith(".k") else (-1, VALUE_GROUP_CHANNELS)
    nothing = 2.0**-30 * float(before.abs().max())  # where a group is nothing beside the largest number
    bounds = []
    for group in before.double().split(size, axis):
        low, high = group.amin(axis, keepdim=True), group.amax(axis, keepdim=True)
        largest = torch.maximum(low.abs(), high.abs())
        steps = (high - low + 2.0**-8 * (high - low + largest)) / levels
        bounds.append((steps / 2 + 1e-6 * largest + nothing).expand_as(group))
    return torch.cat(bounds, axis)


@settings(max_examples=40)
@given(
    st.integers(0, 1000),
    st.integers(1, 3),
    st.sampled_from([1, 2, 63, 64, 65, 130]),
    st.sampled_from([1, 2, 7, 64, 65, 128]),
    st.floats(0, 4),
    st.floats(-1e5, 1e5),
    st.sampled_from(["a.k", "a.v"]),
    st.sampled_from(["int8", "int4"]),
)
def test_quantized_numbers_stay_within_half_a_step(
    seed: int,
    heads: int,
    tokens: int,
    width: int,
    spread: float,
    offset: float,
    name: str,
    storage_format: StorageFormat,
) -> None:
    before = tensor(seed, (heads, tokens, width), spread, offset)
    error = (through(before, name, storage_format).double() - before.double()).abs()
    assert bool((error <= half_steps(before, name, storage_format)).all())


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-8, 1.0, 1e8, 1e30])
@pytest.mark.parametrize("name", ["a.k", "a.v"])
def test_any_scale_of_numbers(scale: float, name: str) -> None:
    before = tensor(1, (2, 70, 64), 1, 0) * scale
    after = through(before, name, "int8")
    assert float((after - before).abs().max()) <= float(before.abs().max()) * 2 / 255


def test_a_step_is_that_of_the_channel_for_keys_and_of_the_token_for_values() -> None:
    channels = torch.ones(1, 64, 64)
    channels[..., 5] = 1000.0 * torch.rand(1, 64, generator=torch.Generator().manual_seed(0))
    calm = torch.arange(64) != 5
    # the loud channel disturbs no other
    assert float((through(channels, "a.k", "int4") - channels)[..., calm].abs().max()) < 0.02
    assert float((through(channels, "a.v", "int4") - channels)[..., calm].abs().max()) < 1000 / 15 / 2 * 1.05
    tokens = channels.transpose(1, 2).contiguous()
    assert float((through(tokens, "a.v", "int4") - tokens)[:, calm].abs().max()) < 0.02


@pytest.mark.parametrize(("storage_format", "bound"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_halves_round(storage_format: StorageFormat, bound: float) -> None:
    before = tensor(1, (2, 70, 64), 1, 0)
    assert bool(
        ((through(before, "a.k", storage_format) - before).abs() <= before.abs() * bound + 1e-7).all()
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_of_the_same_kind_are_exact(dtype: torch.dtype) -> None:
    before = tensor(1, (2, 70, 64), 1, 0).to(dtype)
    assert torch.equal(through(before, "a.k", "fp16" if dtype == torch.float16 else "bf16"), before)


@pytest.mark.parametrize("storage_format", LOSSY)
def test_only_keys_and_values_lose(tmp_path: Path, storage_format: StorageFormat) -> None:
    ids = ids_of(1, 100)
    ranges = {
        "L0.k": tensor(1, (2, 100, 16), 1, 0),
        "L0.v": tensor(2, (2, 100, 16), 1, 0),
        "L1.other": tensor(3, (2, 100, 16), 1, 0),
    }
    states = {
        "L2.recurrent": tensor(4, (2, 16, 16), 1, 0),
        "L3.k": tensor(5, (2, 40, 16), 1, 0),
        "L2.conv.k": torch.randn(7),
    }
    with opened(tmp_path, storage_format=storage_format) as store:
        assert store.put(entry(ids), Segment(0, ranges, states)).stored
        found = store.lookup(ids, MODEL)
        assert found is not None
        loaded = store.load(found)
    assert loaded is not None
    for name, before in {**ranges, **states}.items():
        after = {**loaded.ranges, **loaded.states}[name]
        exact = equal({name: before}, {name: after})
        assert exact == (name in ("L1.other", "L2.recurrent", "L2.conv.k"))
        assert (
            float((after - before).abs().max())
            <= float(before.abs().max())
            * {"fp16": 0.001, "bf16": 0.005, "int8": 0.005, "int4": 0.07}[storage_format]
        )


def test_no_format_is_ever_read_as_another(tmp_path: Path) -> None:
    ids = ids_of(1, 100)
    tensors = {"L0.k": tensor(1, (2, 100, 16), 1, 0)}
    for storage_format in FORMATS:
        with opened(tmp_path, storage_format=storage_format) as store:
            assert store.lookup(ids, MODEL) is None
            assert store.put(entry(ids), Segment(0, tensors)).stored
    with opened(tmp_path) as store:
        found = store.lookup(ids, MODEL)
        assert found is not None
        loaded = store.load(found)
        assert loaded is not None
        assert equal(loaded.ranges, tensors)


@pytest.mark.parametrize(
    ("storage_format", "bad"),
    [("fp16", 1e6), ("int8", float("nan")), ("int4", float("inf")), ("bf16", float("nan"))],
)
def test_what_a_format_cannot_hold_is_declined(
    tmp_path: Path, storage_format: StorageFormat, bad: float
) -> None:
    tensors = {"L0.k": torch.zeros(2, 100, 16)}
    tensors["L0.k"][1, 50, 3] = bad
    with opened(tmp_path, storage_format=storage_format) as store:
        before = store.used_bytes()
        assert store.put(entry(ids_of(1, 100)), Segment(0, tensors)).reason == "encoding"
        assert store.used_bytes() == before
        assert store.lookup(ids_of(1, 100), MODEL) is None


@pytest.mark.parametrize("storage_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_files_are_as_large_as_the_formula_says(
    tmp_path: Path, storage_format: StorageFormat, dtype: torch.dtype
) -> None:
    tokens, heads, width, layers = 700, 3, 64, 6
    # a batch: a row of it must not drag the others along
    whole = torch.randn(8, heads, tokens, width).to(dtype)
    row = {f"L{layer}.{role}": whole[3] for layer in range(layers) for role in "kv"}
    with opened(tmp_path, storage_format=storage_format) as store:
        receipt = store.put(entry(ids_of(1, tokens)), Segment(0, row))
        files = sum(
            path.stat().st_size for path in (tmp_path / "v1" / "entries" / (receipt.entry_id or "")).iterdir()
        )
    formula = entry_bytes(
        [(heads, width, width)] * layers, tokens, element_bytes=dtype.itemsize, storage_format=storage_format
    )
    assert files == pytest.approx(formula, rel=0.02)
    if storage_format == "as_computed":
        assert files == pytest.approx(layers * 2 * heads * tokens * width * dtype.itemsize, rel=0.02)
    assert admin.ls(tmp_path).entries[0].size_bytes == pytest.approx(formula, abs=5 * 4096)


def test_the_formula_counts_segments_and_states(tmp_path: Path) -> None:
    ids, owner = ids_of(1, 900), {"d": 1}
    state = {"L1.s": torch.randn(64, 64), "L2.s": torch.randn(32, 8)}
    with opened(tmp_path, storage_format="int4") as store:
        for begin, end in ((0, 300), (300, 600), (600, 900)):
            keys = {"L0.k": torch.randn(4, end - begin, 64), "L0.v": torch.randn(4, end - begin, 128)}
            receipt = store.put(entry(ids[:end], "checkpoint", owner=owner), Segment(begin, keys, state))
        files = sum(
            path.stat().st_size for path in (tmp_path / "v1" / "entries" / (receipt.entry_id or "")).iterdir()
        )
    formula = entry_bytes(
        [(4, 64, 128)], 900, element_bytes=4, storage_format="int4", states=[(64, 64), (32, 8)], segments=3
    )
    assert files == pytest.approx(formula, rel=0.02)
