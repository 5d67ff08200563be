"""What a sweep costs: bytes from disk, layers loaded and dequantized once for all rows, whatever the batch
and the tiers.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engine.interface import Listener
from pipeline.engine.model.device_map import plan_device_map
from pipeline.engine.model.location import locate
from pipeline.engine.streaming import load, weight_prefetcher
from pipeline.engine.streaming.load import why_streamed
from pipeline.errors import DoesNotFit
from pipeline.records import Decode, Plan, Request, Score, Streaming
from tests.engine.small_models import save_llama
from tests.engine.streaming.opened import answers, configured, engine_on, opened

PLAN = Plan("float32", "none", "device", "instructions_first", 256, 16, 10_000, 64, 1)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_llama(tmp_path / "model")


def requests(count: int, tokens: int = 9, new_tokens: int = 6) -> list[Request]:
    return [
        Request(row, tuple(3 + (row + 7 * place) % 500 for place in range(tokens)), Decode(new_tokens))
        for row in range(count)
    ]


@pytest.mark.parametrize("quantization", ["none", "nf4"])
@pytest.mark.parametrize("rows", [1, 16])
def test_every_sweep_reads_what_is_not_there_once(folder: Path, quantization: str, rows: int) -> None:
    loaded = opened(folder, quantization)
    weights = loaded.hooks.weights
    answers(engine_on(loaded, PLAN), requests(rows))
    assert weights.sweeps == 6  # one for the prompts, one for each token after the first
    stored = sum(block.bytes for blocks in weights._prepared.files.values() for block in blocks)
    tables = sum(block.bytes for block in weights._prepared.files["model.embed_tokens.weight"])
    assert weights.tiers.sweep_bytes == pytest.approx(stored - tables, rel=0.03)
    # What comes first in the next sweep is on its way when this one ends.
    weights.settle()
    ahead = weights._units[0].bytes
    assert weights.files.read_bytes - ahead == pytest.approx(6 * weights.tiers.sweep_bytes, rel=0.03)
    if quantization == "nf4":
        assert dict(weights.dequantized) == {f"model.layers.{layer}": 6 for layer in range(4)}


def test_what_is_allowed_to_stay_is_not_read_again(folder: Path) -> None:
    everything = opened(folder, "nf4", 10**9)
    answers(engine_on(everything, PLAN), requests(3))
    assert everything.hooks.weights.files.read_bytes == everything.hooks.weights.tiers.sweep_bytes == 0
    tight = opened(folder, "none", 650_000)
    tiers = tight.hooks.weights.tiers
    assert tiers.grain == "layer"
    assert set(tiers.tiers) == {"device", "disk"}
    assert tiers.bytes_in("device") + tiers.working_bytes <= 650_000
    answers(engine_on(tight, PLAN), requests(3))
    tight.hooks.weights.settle()
    ahead = max(unit.bytes for unit in tiers.units)
    assert 6 * tiers.sweep_bytes <= tight.hooks.weights.files.read_bytes <= 6 * tiers.sweep_bytes + ahead


def test_where_a_layer_is_too_much_its_modules_come_one_by_one(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "wide", hidden_size=256, intermediate_size=512)
    whole = opened(folder, "nf4", 10**9)
    part = opened(folder, "nf4", 2_400_000)
    assert (whole.hooks.weights.tiers.grain, part.hooks.weights.tiers.grain) == ("layer", "module")
    tiers = part.hooks.weights.tiers
    assert tiers.bytes_in("device") + tiers.working_bytes <= 2_400_000
    texts = [
        [generation.token_ids for generation in answers(engine_on(loaded, PLAN), requests(7))]
        for loaded in (whole, part)
    ]
    assert texts[0] == texts[1]
    assert set(part.hooks.weights.dequantized.values()) == {6}
    with pytest.raises(DoesNotFit, match=r"needs .* MiB for the largest of its matrices.*max_memory"):
        opened(folder, "nf4", 300_000)


def test_rows_come_and_go_between_sweeps(folder: Path) -> None:
    """More requests than rows fit: new micro-batches begin while others go on, and each answer is that of the
    request alone.
    """
    loaded = opened(folder)
    asked = [
        dataclasses.replace(request, ask=Decode(2 + request.request_id % 7))
        for request in requests(20, tokens=12)
    ]
    alone = [answers(engine_on(loaded, PLAN), [request])[0].token_ids for request in asked]
    before = loaded.hooks.weights.sweeps
    plan = dataclasses.replace(PLAN, max_batch_rows=6)
    engine = engine_on(loaded, plan, lane_rows=2)
    done = answers(engine, asked)
    assert [generation.token_ids for generation in done] == alone
    assert max(generation.batch_rows for generation in done) == 2
    assert (
        loaded.hooks.weights.sweeps - before
        < sum(request.ask.max_new_tokens for request in asked if isinstance(request.ask, Decode)) / 3
    )
    assert all(generation.seconds > 0 for generation in done)


def test_a_micro_batch_that_ends_leaves_the_others_in_inference_mode(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = opened(folder)
    layer, modes = loaded.model.model.layers[1].mlp, []
    forward = layer.forward
    monkeypatch.setattr(
        layer, "forward", lambda states: (modes.append(torch.is_inference_mode_enabled()), forward(states))[1]
    )
    asked = [dataclasses.replace(request, ask=Decode(2 + 3 * request.request_id)) for request in requests(4)]
    answers(engine_on(loaded, PLAN, lane_rows=1), asked)
    assert set(modes) == {True}
    assert len(modes) == sum(2 + 3 * row for row in range(4))
    assert not torch.is_inference_mode_enabled()


class Heard:
    def __init__(self) -> None:
        self.begun: list[int] = []
        self.pulses = 0

    def started(self, request_ids: Any) -> None:
        self.begun += request_ids

    def pulse(self) -> None:
        self.pulses += 1


def test_memory_that_runs_out_in_one_micro_batch_halves_that_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = opened(folder)
    expected = [generation.token_ids for generation in answers(engine_on(loaded, PLAN), requests(12))]
    layer = loaded.model.model.layers[2].mlp
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda states: _short(states, forward))
    engine = engine_on(loaded, PLAN)
    heard: Listener = Heard()
    engine.listener = heard
    done = answers(engine, requests(12))
    assert [generation.token_ids for generation in done] == expected
    assert max(generation.batch_rows for generation in done) == 2
    assert isinstance(heard, Heard)
    assert set(heard.begun) == set(range(12))
    assert heard.pulses > 4 * 6


def test_memory_that_runs_out_while_weights_are_unpacked_is_a_smaller_batch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = opened(folder, "nf4")
    expected = [generation.token_ids for generation in answers(engine_on(loaded, PLAN), requests(6))]
    unpack, left = weight_prefetcher.dequantize, [torch.OutOfMemoryError("not enough memory")]

    def short_once(*args: Any) -> None:
        if left:
            raise left.pop()
        unpack(*args)

    loaded.hooks.weights.open(1)
    monkeypatch.setattr(weight_prefetcher, "dequantize", short_once)
    assert [generation.token_ids for generation in answers(engine_on(loaded, PLAN), requests(6))] == expected
    assert not left


@pytest.mark.parametrize("quantization", ["none", "nf4", "int8"])
def test_all_units_travel_in_two_slabs(folder: Path, quantization: str) -> None:
    loaded = opened(folder, quantization)
    answers(engine_on(loaded, PLAN), requests(6))
    assert loaded.hooks.weights._pool.made == 2


def _short(states: torch.Tensor, forward: Any) -> torch.Tensor:
    if len(states) > 2:
        raise torch.OutOfMemoryError("not enough memory: this layer takes two rows")
    result: torch.Tensor = forward(states)
    return result


def test_a_row_on_which_the_model_fails_costs_the_others_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = opened(folder)
    embedding = loaded.model.get_input_embeddings()
    gather = embedding.forward

    def refusing(ids: torch.Tensor) -> torch.Tensor:
        if (ids == 77).any():
            raise ValueError("no such word")
        return gather(ids)

    monkeypatch.setattr(embedding, "forward", refusing)
    engine = engine_on(loaded, PLAN)
    asked = [
        Request(9, (77, 5, 6), Decode(3)),
        *(Request(row, (5 + row, 6, 7), Decode(3)) for row in range(5)),
    ]
    engine.admit(asked)
    done = {}
    while not engine.idle:
        done.update({generation.request_id: generation for generation in engine.step()})
    assert done[9].error is not None
    assert "no such word" in done[9].error[1]
    assert all(done[row].error is None and len(done[row].token_ids) == 3 for row in range(5))


def test_an_engine_that_is_stopped_in_the_middle_leaves_the_model_whole(folder: Path) -> None:
    loaded = opened(folder)
    expected = [generation.token_ids for generation in answers(engine_on(loaded, PLAN), requests(6))]

    class Stop(BaseException):
        pass

    class Impatient(Heard):
        def pulse(self) -> None:
            super().pulse()
            if self.pulses == 17:
                raise Stop

    engine = engine_on(loaded, PLAN)
    engine.listener = Impatient()
    engine.admit(requests(6))
    with pytest.raises(Stop):
        list(iter(engine.step, ()))
    assert [generation.token_ids for generation in answers(engine_on(loaded, PLAN), requests(6))] == expected


def test_features_are_those_of_the_row_that_asked(folder: Path) -> None:
    loaded = opened(folder)
    ask = Score(((4,), (5, 6)), features=True)
    asked = [dataclasses.replace(request, ask=ask) for request in requests(8)]
    together = answers(engine_on(loaded, PLAN, lane_rows=2), asked)
    alone = [answers(engine_on(loaded, PLAN), [request])[0] for request in asked]
    assert len({generation.features for generation in together}) == 8
    for one, other in zip(together, alone, strict=True):
        states = [
            torch.frombuffer(bytearray(generation.features), dtype=torch.float16).float()
            for generation in (one, other)
        ]
        torch.testing.assert_close(states[0], states[1], atol=2e-3, rtol=2e-3)


def test_when_weights_are_streamed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(
        quantization: str, cpu_bytes: int, weights: str, streaming: Streaming | None = None
    ) -> str | None:
        config = configured(folder, quantization, cpu_bytes, weights=weights)
        plan = dataclasses.replace(PLAN, quantization=quantization, streaming=streaming)
        return why_streamed(config, locate(config.model), plan)

    assert reason("nf4", 10**9, "auto") is None
    assert "only streaming keeps them quantized" in str(reason("nf4", 300_000, "auto"))
    assert reason("none", 600_000, "auto") is None  # the page cache holds them: plain offload is faster
    placed = plan_device_map(
        configured(folder, "none", 600_000).model, locate(configured(folder).model), "float32"
    ).bytes_by_device
    for spare, streams in ((1, False), (-1, True)):  # what is placed in RAM is not there for the page cache
        free = placed["cpu"] + placed["disk"] + spare
        monkeypatch.setattr(load, "available_ram_bytes", lambda free=free: free)
        assert bool(reason("none", 600_000, "auto")) == streams
    assert reason("nf4", 300_000, "resident") is None
    # the plan's word counts
    assert "beside what computes with them" in str(
        reason("nf4", 10**9, "auto", Streaming(1000, 0, "layer", 32))
    )
    assert "page cache cannot hold" in str(reason("none", 10**9, "auto", Streaming(1000, 0, "layer", 32)))
    assert reason("none", 10**9, "streamed") == "weights are streamed, as configured"
