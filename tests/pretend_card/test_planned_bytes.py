"""What the plan says of each device, and what the loader puts there: the same bytes."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config import Config, parse_config
from pipeline.engine.hf_backend import TransformersBackend
from pipeline.engine.interface import PlanRequest
from pipeline.engine.model.loading import LoadedModel
from pipeline.planner.plan import wish_of
from pipeline.records import Plan
from pipeline.system.hardware import Disk, Hardware
from tests.engine.small_models import save_llama

MIB = 2**20
RESOLVED = {"dtype": "bfloat16", "layout": "instructions_first"}
LARGER = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "vocab_size": 4096}


def configured(folder: Path, **model: Any) -> Config:
    return parse_config(
        {
            "model": {"id": str(folder), "quantization": "none", "context_tokens": 256, **model},
            "source": {"path": "x"},
            "tasks": [{"name": "s", "kind": "summarize"}],
            "run": {"directory": str(folder / "run")},
            "engine": {"weights": "resident", "prefill_chunk_tokens": 64},
        }
    )


def planned(config: Config, machine: Hardware) -> tuple[TransformersBackend, Plan]:
    backend = TransformersBackend(config)
    wish = wish_of(config, 256, RESOLVED)
    return backend, backend.plan(PlanRequest(RESOLVED, machine, wish))


def machine(cards: tuple[int, ...], ram: int) -> Hardware:
    names = ("Pretend card",) * len(cards)
    return Hardware(2, ram, cards, names, (Disk("/", 2**40),))


def held(loaded: LoadedModel) -> Counter[str]:
    """Bytes of the model's parameters by device; "meta" are those that come when they are used."""
    found: Counter[str] = Counter()
    for parameter in {id(each): each for each in loaded.model.parameters()}.values():
        found[str(parameter.device)] += parameter.numel() * parameter.element_size()
    return found


def beside_weights(loaded: LoadedModel) -> int:
    """Bytes of what the model computes for itself: tables of its rotary embedding."""
    return sum(buffer.numel() * buffer.element_size() for buffer in loaded.model.buffers())


# Free bytes of the cards and of RAM with which a model of 40 MiB is on the devices that stand behind them.
MACHINES = {
    "one card": ((2048 * MIB,), 4096 * MIB, {"0"}),
    "two cards": ((596 * MIB, 581 * MIB), 4096 * MIB, {"0", "1"}),
    "a card and RAM": ((581 * MIB,), 4096 * MIB, {"0", "cpu"}),
    "a card, RAM and disk": ((581 * MIB,), 540 * MIB, {"0", "cpu", "disk"}),
    "RAM": ((), 4096 * MIB, {"cpu"}),
    "RAM and disk": ((), 575 * MIB, {"cpu", "disk"}),
}


CASES = [(name, tied) for name in MACHINES for tied in (False, True)]
QUICK = (("two cards", False), ("a card, RAM and disk", True))


@pytest.mark.parametrize(
    ("name", "tied"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.full) for case in CASES]
)
def test_they_are_the_same(
    name: str, tied: bool, tmp_path: Path, cards: Callable[..., None], card: Any
) -> None:
    sizes, ram, places = MACHINES[name]
    cards(f"{max(1, len(sizes))}x2GiB")
    folder = save_llama(tmp_path / "model", tie_word_embeddings=tied, **LARGER)
    backend, plan = planned(configured(folder), machine(sizes, ram))
    assert plan.weights is not None
    assert set(plan.weights.bytes_by_device) == places
    gc.collect()
    torch.cuda.empty_cache()  # a kept block is given away whole where less than 1 MiB of it would be left
    before = [card.memory(index)["allocated"] for index in range(len(sizes))]
    loaded = backend.load(replace(plan, threads=None), tmp_path / "offload", lambda _: None)
    assert loaded.facts["bytes_by_device"] == plan.weights.bytes_by_device
    found = held(loaded)
    for index in range(len(sizes)):
        assert found[f"cuda:{index}"] == plan.weights.bytes_by_device[str(index)]
        rounded = 512 * sum(1 for _ in loaded.model.parameters())  # an allocation is a multiple of it
        allocated = card.memory(index)["allocated"] - before[index]
        assert 0 <= allocated - found[f"cuda:{index}"] <= rounded + beside_weights(loaded) + MIB
    whole = sum(plan.weights.bytes_by_device.values())
    assert whole == loaded.facts["weights_bytes"] - beside_weights(loaded)


@pytest.mark.parametrize("quantization", ["nf4", pytest.param("int8", marks=pytest.mark.full)])
def test_quantized_weights_too(quantization: str, tmp_path: Path, cards: Callable[..., None]) -> None:
    cards("2x2GiB")
    folder = save_llama(tmp_path / "model", **LARGER)
    config = configured(folder, quantization=quantization)
    backend, plan = planned(config, machine((2048 * MIB,), 4096 * MIB))
    assert plan.weights is not None
    loaded = backend.load(replace(plan, threads=None), tmp_path / "offload", lambda _: None)
    assert loaded.facts["weights_bytes"] - beside_weights(loaded) == plan.weights.bytes_by_device["0"]


@pytest.mark.full
def test_the_second_card_alone_has_its_number(tmp_path: Path, cards: Callable[..., None]) -> None:
    cards("2x2GiB")
    folder = save_llama(tmp_path / "model")
    config = configured(folder, max_memory={1: 1024 * MIB})
    backend, plan = planned(config, machine((2048 * MIB, 2048 * MIB), 4096 * MIB))
    assert plan.weights is not None
    assert plan.weights.devices == {"": "1"}
    loaded = backend.load(replace(plan, threads=None), tmp_path / "offload", lambda _: None)
    assert set(held(loaded)) == {"cuda:1"}
