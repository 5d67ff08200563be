"""Weights that pass through a card: one copy a unit, beside what computes, into memory that is there; nobody
waits on the host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engine.model.identity import weights_identity
from pipeline.engine.model.loading import load_model
from pipeline.engine.model.location import locate
from pipeline.engine.select import select_engine
from pipeline.engine.streaming.load import StreamedModel, open_streamed
from pipeline.records import Decode, Plan, Request, Streaming
from tests.engine.small_models import save_llama
from tests.engine.streaming.opened import answers, configured
from tests.equivalence.families import prompts

_SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "vocab_size": 512}
MIB = 2**20
_IDS = [[5, 6, 7, 8]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("model"), **_SIZES)


def streamed(folder: Path, quantization: str, device_bytes: int, ram_bytes: int) -> StreamedModel:
    config = configured(folder, quantization)
    memory = {0: device_bytes, "cpu": ram_bytes}
    config = config.model_copy(update={"model": config.model.model_copy(update={"max_memory": memory})})
    location = locate(config.model)
    return open_streamed(
        config, location, "float32", weights_identity(config.model, location), lambda _: None, "for a test"
    )


@pytest.mark.parametrize(
    ("quantization", "device_bytes", "ram_bytes"),
    [
        pytest.param("nf4", 4 * MIB, 10**9, id="nf4 in ram"),
        pytest.param("nf4", 4 * MIB, 0, id="nf4 on disk", marks=pytest.mark.full),
        pytest.param("none", 10 * MIB, 10**9, id="plain in ram", marks=pytest.mark.full),
        pytest.param("none", 10 * MIB, 0, id="plain on disk"),
    ],
)
def test_a_unit_is_one_copy_and_nobody_waits(
    quantization: str,
    device_bytes: int,
    ram_bytes: int,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    card: Any,
) -> None:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path))
    resident = load_model(configured(folder, quantization).model, "float32", tmp_path / "offload").model
    loaded = streamed(folder, quantization, device_bytes, ram_bytes)
    weights = loaded.hooks.weights
    passing = [
        unit
        for unit, tier in zip(weights.tiers.units, weights.tiers.tiers, strict=True)
        if tier == ("ram" if ram_bytes else "disk")
    ]
    assert len(passing) >= 3, weights.tiers.describe("cuda")
    ids = torch.tensor(_IDS, device="cuda")
    with torch.inference_mode():
        expected = resident(ids, use_cache=False).logits
        for _ in range(2):  # the first sweep reads how weights are quantized
            found = loaded.model(ids, use_cache=False).logits
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        weights.settle()
        plain = counted(card, lambda: resident(ids, use_cache=False))
        card.reset_peak(0)
        held = card.memory(0)["allocated"]
        found = counted(card, lambda: (loaded.model(ids, use_cache=False), weights.settle()))
        activations = 2**20
        assert card.memory(0)["peak_allocated"] - held <= activations
    assert found["pinned copies to the card"] == len(passing) + 1  # and rows of the embeddings
    swept = sum(unit.bytes for unit in passing)
    rows = ids.numel() * _SIZES["hidden_size"] * 4
    gaps = 64 * sum(len(unit.blocks) for unit in passing)
    assert swept <= found["bytes to the card"] <= swept + gaps + rows + 2**10
    # which rows of the embeddings; the thread that reads waits for the copy of what it reads over
    reader = 0 if ram_bytes else found.get("host waits: event", 0)
    assert found.get("host waits", 0) - reader <= plain.get("host waits", 0) + 1
    loaded.hooks.weights.close()


@pytest.mark.parametrize("placement", ["device", "offloaded"])
def test_a_sweep_reads_as_many_tokens_of_prompts_as_a_pass_may(
    placement: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Any
) -> None:
    """Bytes over the link a token that is read: packed passes of up to two of eight prompts are four sweeps;
    micro-batches of two, side by side, are one, and bring their keys and values.
    """
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path))
    loaded = streamed(folder, "nf4", 4 * MIB, 10**9)
    rows, length, together = 8, 60, 2
    plan = Plan(
        "float32", "nf4", placement, "instructions_first", 256, rows, 4_000, together * length, 1024,
        streaming=Streaming(0, 10**9, "layer", together),
    )  # fmt: skip
    engine, told = select_engine(loaded, plan, end_ids=(), pad_id=0)
    assert ("packed" in told) == (placement == "device"), told
    weights = loaded.hooks.weights
    swept = sum(
        unit.bytes + 64 * len(unit.blocks)
        for unit, tier in zip(weights.tiers.units, weights.tiers.tiers, strict=True)
        if tier == "ram"
    )
    requests = [Request(number, ids, Decode(1)) for number, ids in enumerate(prompts((length,) * rows))]
    weights.settle()
    found = counted(card, lambda: (answers(engine, requests), weights.settle()))
    tokens, sweeps = rows * length, rows // together if placement == "device" else 1
    beside = tokens * _SIZES["hidden_size"] * 4 * 1.05 + 2**15  # rows of the embeddings, and numbers
    if placement == "offloaded":
        config = loaded.model.config
        beside += tokens * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    per_token = found["bytes to the card"] / tokens
    assert 0.95 * swept * sweeps / tokens < per_token <= (swept * sweeps + beside) / tokens
    weights.close()


def counted(card: Any, work: Any) -> dict[str, int]:
    """What ``work`` counts."""
    torch.cuda.synchronize()
    before = card.counts()
    work()
    after = card.counts()
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
