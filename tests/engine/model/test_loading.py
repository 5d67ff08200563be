"""Loading: every kind of numbers on the real demo model, disk offload, explicit dtypes, refusals in
sentences.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

# first imported while a card is pretended, it stays half imported for the whole process
import bitsandbytes  # noqa: F401
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from pipeline.config import ModelConfig
from pipeline.engine.model import precision
from pipeline.engine.model.loading import load_model
from pipeline.engine.model.location import locate
from pipeline.engine.model.precision import resolve_attention, resolve_dtype
from pipeline.engine.select import select_engine
from pipeline.errors import ConfigError
from pipeline.records import Decode, Plan, Request
from pipeline.system.graphics_cards import GraphicsCard
from tests.engine.small_models import save_llama, save_mixtral

IDS = torch.arange(300, 340).reshape(1, 40)


def load(folder: Path | str, offload: Path, dtype: str = "float32", **changes: Any) -> Any:
    return load_model(ModelConfig(id=str(folder), **changes), dtype, offload)


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=IDS, use_cache=False).logits


def test_nf4_makes_every_linear_of_the_demo_model_4_bit(
    demo_model_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    loaded = load_model(
        ModelConfig(id="smollm2-135m-instruct", quantization="nf4"), "float32", tmp_path, said.append
    )
    facts = loaded.facts
    assert facts["linear4bit"] == facts["decoder_linears"] == 210
    assert facts["weights_bytes"] <= 170_000_000
    assert facts["embeddings_bytes"] == 49152 * 576 * 4
    assert facts["head_bytes"] == 0  # tied
    assert facts["quantization"] == {"type": "nf4", "double_quantization": True, "compute_dtype": "float32"}
    assert facts["device_map"] == {"": "cpu"}
    assert facts["attention"] == "sdpa"
    assert facts["peak_load_bytes"] > facts["weights_bytes"]
    assert facts["load_seconds"] > 0
    assert json.loads(json.dumps(facts)) == facts
    assert said == ["loading smollm2-135m-instruct: 160 MiB of weights on cpu"]
    assert not logits(loaded.model).isnan().any()
    written = capfd.readouterr()
    assert (written.out, written.err) == ("", "")


def test_int8_and_none_load_the_demo_model(
    demo_model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        eight = load(demo_model_folder, tmp_path, "bfloat16", quantization="int8")
        plain = load(demo_model_folder, tmp_path, "bfloat16", quantization="none")
        near = torch.nn.functional.cosine_similarity(
            logits(eight.model).float(), logits(plain.model).float(), dim=-1
        )
    assert eight.facts["linear8bit"] == eight.facts["decoder_linears"] == 210
    assert eight.facts["quantization"]["type"] == "int8"
    assert plain.facts["quantization"] == {"type": "none"}
    assert plain.facts["linear4bit"] == plain.facts["linear8bit"] == 0
    assert plain.facts["weights_bytes"] == pytest.approx(269e6, rel=0.01)
    assert near.mean() > 0.95
    assert not [record for record in caplog.records if "inputs will be cast" in record.getMessage()]


def test_4_bit_computes_in_the_dtype_asked_for(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model")
    model = load(folder, tmp_path, quantization="nf4").model
    dequantized = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=nf4())
        .dequantize()
        .float()
        .eval()
    )
    assert torch.allclose(logits(model), logits(dequantized), atol=1e-5)


def nf4() -> Any:
    return precision.quantization_config("nf4", "float32")


@pytest.mark.parametrize("tied", [True, False])
def test_disk_offload_computes_the_same(tmp_path: Path, tied: bool) -> None:
    folder = save_llama(tmp_path / "model", tie_word_embeddings=tied)
    whole = load(folder, tmp_path / "a", quantization="none")
    part = load(
        folder, tmp_path / "b", quantization="none", max_memory={"cpu": whole.facts["weights_bytes"] * 3 // 4}
    )
    assert "disk" in part.facts["device_map"].values()
    assert part.input_device == torch.device("cpu")
    assert torch.equal(logits(part.model), logits(whole.model))


def test_a_dispatched_model_is_never_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights on disk stay where the device map put them while an engine answers."""
    folder = save_llama(tmp_path / "model")
    allowed = load(folder, tmp_path / "a", quantization="none").facts["weights_bytes"] * 3 // 4
    part = load(folder, tmp_path / "b", quantization="none", max_memory={"cpu": allowed})
    before = {name: parameter.device.type for name, parameter in part.model.named_parameters()}
    assert set(before.values()) == {"cpu", "meta"}  # some are on the disk
    moved: list[str] = []
    plain = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        moved.append(type(self).__name__)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "to", to)
    plan = Plan("float32", "none", "device", "instructions_first", 256, 2, 1000, 64, 1)
    engine, _ = select_engine(part, plan, end_ids=[2], pad_id=0)
    engine.admit([Request(1, (5, 6, 7, 8), Decode(3))])
    done = []
    while not engine.idle:
        done += list(engine.step())
    assert [generation.error for generation in done] == [None]
    assert moved == []
    assert {name: parameter.device.type for name, parameter in part.model.named_parameters()} == before


def test_disk_offload_of_experts_that_change_form(tmp_path: Path) -> None:
    folder = save_mixtral(tmp_path / "model")
    whole = load(folder, tmp_path / "a", quantization="none")
    part = load(
        folder, tmp_path / "b", quantization="none", max_memory={"cpu": whole.facts["weights_bytes"] * 3 // 4}
    )
    assert list((tmp_path / "b").glob("*.safetensors"))
    assert torch.equal(logits(part.model), logits(whole.model))


def test_weights_of_other_formats_are_refused(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"no safetensors file; other formats \(\.bin"):
        load(folder, tmp_path)


def test_a_damaged_weight_file_is_refused(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ConfigError, match="damaged"):
        load(folder, tmp_path, quantization="none")


def test_a_missing_weight_is_never_replaced_by_random_numbers(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack 1 weights .* model\.layers\.1\.mlp\.up_proj\.weight"):
        load(folder, tmp_path, quantization="none")


def test_a_model_with_code_of_its_own_is_refused_unless_trusted(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "made_up",
        "auto_map": {"AutoConfig": "code.Made", "AutoModelForCausalLM": "code.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Made: pass\n")
    with pytest.raises(ConfigError, match="brings its own code"):
        load(folder, tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_model_stored_in_4_bits_keeps_them_and_computes_as_asked(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model")
    stored = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=nf4())
    stored.save_pretrained(tmp_path / "stored")
    loaded = load(tmp_path / "stored", tmp_path, "bfloat16", quantization="nf4")
    assert loaded.facts["linear4bit"] == loaded.facts["decoder_linears"]
    assert {m.compute_dtype for m in loaded.model.modules() if hasattr(m, "compute_dtype")} == {
        torch.bfloat16
    }
    with pytest.raises(ConfigError, match="stored quantized"):
        load(tmp_path / "stored", tmp_path, quantization="int8")


def test_an_unknown_architecture_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "never_heard_of"}))
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="never_heard_of"):
        load(tmp_path, tmp_path / "offload")


def test_auto_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_dtype("float16") == "float16"
    for native, expected in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(precision, "cpu_computes_bfloat16", lambda native=native: native)
        assert resolve_dtype("auto", "cpu") == expected
    for capability, expected in (((8, 6), "bfloat16"), ((7, 5), "float16")):
        cards = (
            GraphicsCard("A", capability, 30, 8 << 30, 7 << 30),
            GraphicsCard("B", (9, 0), 30, 8 << 30, 0),
        )
        monkeypatch.setattr(precision, "graphics_cards", lambda cards=cards: cards)
        assert resolve_dtype("auto") == expected


def test_native_bfloat16_is_told_by_the_processor() -> None:
    assert precision.cpu_computes_bfloat16() == bool({"avx512_bf16", "amx_bf16", "bf16"} & flags())


def flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        pytest.skip("needs Linux")
    return {word for line in lines if line.startswith(("flags", "Features")) for word in line.split()}


def test_auto_attention(tmp_path: Path) -> None:
    config = ModelConfig(id=str(save_llama(tmp_path)))
    assert resolve_attention("auto", locate(config), config) == "sdpa"
    assert resolve_attention("eager", locate(config), config) == "eager"
