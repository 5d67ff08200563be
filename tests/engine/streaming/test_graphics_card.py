"""On a graphics card: pinned buffers and a stream of their own, peak within the plan, copies beside
computing, as resident.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engine.model.identity import weights_identity
from pipeline.engine.model.loading import load_model
from pipeline.engine.model.location import locate
from pipeline.engine.streaming.load import StreamedModel, open_streamed
from pipeline.records import Decode, Plan, Request
from tests.engine.small_models import save_llama
from tests.engine.streaming.opened import answers, configured, engine_on

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PLAN = Plan("float32", "nf4", "device", "instructions_first", 256, 16, 10_000, 256, 1)
_WIDE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "vocab_size": 8192}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))
    return save_llama(tmp_path / "model", **_WIDE)


def on_card(folder: Path, memory: dict[int | str, int]) -> StreamedModel:
    config = configured(folder, "nf4")
    config = config.model_copy(update={"model": config.model.model_copy(update={"max_memory": memory})})
    location = locate(config.model)
    return open_streamed(
        config, location, "float32", weights_identity(config.model, location), lambda _: None, "for a test"
    )


def requests(rows: int) -> list[Request]:
    return [
        Request(row, tuple(3 + (row + 7 * place) % 500 for place in range(20)), Decode(6))
        for row in range(rows)
    ]


@pytest.mark.parametrize("ram_bytes", [0, 10**9])
def test_as_resident_and_within_the_plan(folder: Path, tmp_path: Path, ram_bytes: int) -> None:
    resident = load_model(configured(folder, "nf4").model, "float32", tmp_path / "offload").model
    loaded = on_card(folder, {0: 90 * 2**20, "cpu": ram_bytes})
    tiers = loaded.hooks.weights.tiers
    assert tiers.bytes_in("ram" if ram_bytes else "disk") > 0
    ids = torch.tensor([[5, 6, 7, 8]], device="cuda")
    with torch.inference_mode():
        torch.testing.assert_close(loaded.model(ids).logits, resident(ids).logits, atol=1e-4, rtol=1e-4)
    del resident
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    answers(engine_on(loaded, PLAN), requests(12))
    # activations and keys and values
    assert torch.cuda.max_memory_allocated() - before <= tiers.working_bytes + 64 * 2**20


@pytest.mark.skipif("PRETEND_CARD" in os.environ, reason="a pretended card takes no time")
def test_copies_run_beside_computing(folder: Path) -> None:
    loaded = on_card(folder, {0: 90 * 2**20, "cpu": 10**9})
    engine = engine_on(loaded, PLAN)
    answers(engine, requests(4))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        answers(engine, requests(16))
    copies, kernels = [], []
    for event in profile.events():
        span = event.time_range.start, event.time_range.end
        (copies if "HtoD" in event.name else kernels).append(span)
    assert copies
    assert sum(_meets(copy, kernels) for copy in copies) > 0


def _meets(span: tuple[Any, Any], others: list[tuple[Any, Any]]) -> bool:
    return any(begin < span[1] and span[0] < end for begin, end in others)
