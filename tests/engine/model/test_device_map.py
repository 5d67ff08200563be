"""Placement: sizes as loaded, memory obeyed, ties kept together, refusals in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# first imported while a card is pretended, it stays half imported for the whole process
import bitsandbytes  # noqa: F401
import pytest
import torch

from pipeline.config import ModelConfig
from pipeline.engine.model import device_map as module
from pipeline.engine.model.device_map import DeviceMap, plan_device_map
from pipeline.engine.model.loading import load_model
from pipeline.engine.model.location import locate
from pipeline.errors import ConfigError, DoesNotFit
from tests.engine.small_models import save_llama, save_mixtral


def plan(folder: Path, quantization: str = "none", cpu_bytes: int | None = None, **changes: Any) -> DeviceMap:
    memory = None if cpu_bytes is None else {"cpu": cpu_bytes}
    config = ModelConfig(id=str(folder), quantization=quantization, max_memory=memory, **changes)
    return plan_device_map(config, locate(config), "float32")


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("untied"))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quantization", ["none", "int8", "nf4"])
def test_planned_bytes_are_loaded_bytes(tmp_path: Path, quantization: str, tied: bool) -> None:
    # Small models have small blocks, so the fixed tables of 4 bits (1,088 bytes a layer) show; they are left
    # out of the plan.
    folder = save_llama(tmp_path / "model", tie_word_embeddings=tied)
    planned = plan(folder, quantization)
    assert planned.devices == {"": "cpu"}
    loaded = load_model(
        ModelConfig(id=str(folder), quantization=quantization), "float32", tmp_path / "offload"
    )
    tables = loaded.facts["linear4bit"] * (16 + 256) * 4
    assert loaded.facts["weights_bytes"] == pytest.approx(planned.needed_bytes + tables, rel=0.01)


def test_what_does_not_fit_goes_to_disk_within_the_memory_allowed(untied: Path) -> None:
    whole = plan(untied).needed_bytes
    allowed = whole * 3 // 4
    placed = plan(untied, cpu_bytes=allowed)
    assert set(placed.devices.values()) == {"cpu", "disk"}
    assert 0 < placed.bytes_by_device["cpu"] <= allowed
    assert placed.needed_bytes == whole
    assert placed.rewritten_bytes == 0  # read back from the model's own safetensors
    layers = [module for module in placed.devices if ".layers." in module]
    assert all(name.count(".") == 2 for name in layers)  # no block is split


def test_exactly_enough_is_enough(untied: Path) -> None:
    whole = plan(untied).needed_bytes
    assert plan(untied, cpu_bytes=whole).devices == {"": "cpu"}
    assert "disk" in plan(untied, cpu_bytes=whole - 1).bytes_by_device


def test_tied_weights_stay_together(tmp_path: Path) -> None:
    folder = save_llama(tmp_path, tie_word_embeddings=True)
    whole = plan(folder).needed_bytes
    placed = plan(folder, cpu_bytes=whole * 3 // 4)
    assert "disk" in placed.bytes_by_device
    assert placed.devices["lm_head"] == placed.devices["model.embed_tokens"]
    assert placed.needed_bytes == whole


@pytest.mark.parametrize(
    ("quantization", "remedy"), [("nf4", "smaller model"), ("int8", "quantization: nf4")]
)
def test_a_quantized_model_that_does_not_fit_is_refused_in_one_sentence(
    untied: Path, quantization: str, remedy: str
) -> None:
    allowed = plan(untied, quantization).needed_bytes - 1
    with pytest.raises(DoesNotFit) as refused:
        plan(untied, quantization, cpu_bytes=allowed)
    text = str(refused.value)
    assert remedy in text
    assert "max_memory" in text
    assert "quantization: none" in text
    assert ("quantization: nf4" in text) == (quantization == "int8")
    assert "\n" not in text
    assert "dispatched" not in text


def test_the_largest_weight_must_fit(untied: Path) -> None:
    with pytest.raises(DoesNotFit, match=r"largest weight .*embed_tokens.* cannot be split"):
        plan(untied, cpu_bytes=100_000)


def cards(monkeypatch: pytest.MonkeyPatch, *free: int) -> None:
    """Let the machine seem to have graphics cards: the map is made without touching one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda card=0: (free[card], free[card]))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda card=0: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda card=0: 0)


def test_a_card_that_holds_it_holds_all_of_it(untied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(monkeypatch, 10**9)
    placed = plan(untied, "nf4")
    assert placed.devices == {"": "0"}
    assert placed.device_map() == {"": 0}
    assert plan(untied, "nf4", device_map="cpu").devices == {"": "cpu"}


def test_quantized_beside_a_card_is_refused_and_plain_goes_to_ram(
    untied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(monkeypatch, 450_000)
    with pytest.raises(DoesNotFit, match=r"on GPU 0; .*model\.device_map: cpu"):
        plan(untied, "int8")
    placed = plan(untied)
    assert set(placed.bytes_by_device) == {"0", "cpu"}
    assert placed.bytes_by_device["0"] <= 450_000 * 0.9
    assert "GPU 0" in placed.describe()


def test_configured_memory_of_a_card_is_obeyed_and_never_more_than_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cards(monkeypatch, 5_000, 7_000)
    allowed = module.allowed_bytes(ModelConfig(id="x", max_memory={0: 10_000, "cpu": 123}))
    assert allowed == {0: 5_000, "cpu": 123}
    with pytest.raises(ConfigError, match="names graphics card 4; this machine has 2"):
        module.allowed_bytes(ModelConfig(id="x", max_memory={4: 10_000}))


def test_weights_that_change_form_while_loading_need_room_on_disk(tmp_path: Path) -> None:
    folder = save_mixtral(tmp_path)
    whole = plan(folder).needed_bytes
    placed = plan(folder, cpu_bytes=whole * 3 // 4)
    assert placed.rewritten_bytes == placed.bytes_by_device["disk"] > 0


def test_a_placement_is_described_with_its_sizes() -> None:
    assert (
        DeviceMap({"a": "0", "b": "disk"}, {"0": 2**30, "disk": 2**20}).describe()
        == "1.0 GiB of weights on GPU 0, 1 MiB on disk"
    )
