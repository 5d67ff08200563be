"""How a model comes onto a card, and how it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import ModelConfig
from pipeline.errors import OutOfMemory
from tests.engine.small_models import save_llama
from tests.nights import documents
from tests.pretend_card.card_nights import CardNight


@pytest.mark.full
def test_a_model_for_the_processor_leaves_the_card_alone(tmp_path: Path) -> None:
    model = {"id": str(save_llama(tmp_path / "model", max_position_embeddings=2048)), "device_map": "cpu"}
    options = {"PRETEND_CARD": "8GiB"}
    night = CardNight(tmp_path, documents(2, longest=3), extra={"model": model}, options=options)
    done = night.run()
    assert done.returncode == 0, done.stdout + done.stderr
    planned = night.command("plan", str(night.config), "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["machine"]["gpu_bytes"] == []
    for report in night.processes:
        assert not report["initialized"]
        assert report["counts"].get("launches", 0) == 0
    assert night.that_ran("graphics_cards") == []  # nobody asked for it


def test_memory_that_runs_out_in_4_bits_is_called_that(tmp_path: Path, card: Any) -> None:
    from pipeline.engine.model.loading import load_model

    folder = save_llama(tmp_path / "model")
    card.fail_after(12, "oom")
    with pytest.raises(OutOfMemory, match=r"memory ran out while the weights of .* were read"):
        load_model(ModelConfig(id=str(folder), quantization="nf4"), "bfloat16", tmp_path / "offload")
    card.fail_after(0, "oom")
    loaded = load_model(ModelConfig(id=str(folder), quantization="nf4"), "bfloat16", tmp_path / "offload")
    assert loaded.facts["linear4bit"] == loaded.facts["decoder_linears"] == 28
