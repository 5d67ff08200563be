"""``overnight plan`` as a user meets it: reasons, predictions, other machines, tables, plots, and what is
missing said out loud.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.nights import ANight, documents

# The shape of a real model, as its configuration is published; no weights anywhere.
LLAMA_3_8B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def a_model(folder: Path, **keys: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA_3_8B, **keys}))
    return folder


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ANight:
    """A configuration for a model of which nothing but config.json is here."""
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))
    extra = {"model": {"id": str(a_model(tmp_path / "model")), "quantization": "nf4", "context_tokens": 4096}}
    return ANight(tmp_path, documents(30), extra=extra)


def plan(night: ANight, *arguments: str) -> dict[str, Any]:
    done = night.command("plan", str(night.config), *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def value(facts: dict[str, Any], name: str) -> float:
    found = facts["quantities"][name]
    assert found["unit"]
    assert found["formula"]
    return float(found["value"])


def test_one_configuration_for_three_machines(night: ANight) -> None:
    small = plan(night, "--vram", "8GiB", "--ram", "32GiB", "--pcie", "3.0x16")
    large = plan(night, "--vram", "24GiB", "--ram", "64GiB", "--pcie", "4.0x16")
    none = plan(night, "--ram", "32GiB", "--cores", "8")
    for facts in (small, large, none):
        assert facts["forecast"]["verdict"] == "resident"
        assert len(facts["forecast"]["reasons"]) >= 3
        assert value(facts, "parameters") == 8_030_261_248
        assert value(facts, "work") > 0
        assert any("config.json alone" in note for note in facts["notes"])
        assert any("four characters a token" in note for note in facts["notes"])
    assert value(small, "vram_peak") < 8 * 2**30
    assert value(small, "rows") <= value(large, "rows")
    assert value(none, "vram_peak") == 0
    assert value(none, "work") > value(large, "work")


def test_a_split_model_says_how_slow_and_what_would_help(night: ANight) -> None:
    facts = plan(night, "--vram", "8GiB", "--ram", "32GiB", "--set", "model.quantization=none")
    assert facts["forecast"]["verdict"] == "split"
    assert value(facts, "slowdown") > 2
    assert value(facts, "transferred_a_step") == pytest.approx(
        value(facts, "weights_in_ram") + value(facts, "weights_on_disk"), rel=0.01
    )
    assert any("nf4" in step for step in facts["forecast"]["next_steps"])


def test_words_for_a_newcomer(night: ANight) -> None:
    done = night.command("plan", str(night.config), "--vram", "24GiB", "--ram", "64GiB", "--tables")
    assert done.returncode == 0, done.stderr
    for words in (
        "Decision: it fits.",
        "Predictions (speeds: typical of such a machine)",
        "GQA",
        "vLLM or TGI",
        "Documents: 30",
        "KV cache by context",
        "Tokens in",
        "Which models fit in 4 bits",
        "PCIe 4.0 x16",
    ):
        assert words in done.stdout, words
    assert "None" not in done.stdout


def test_a_hardware_file_and_words_exclude_each_other(night: ANight, tmp_path: Path) -> None:
    machine = tmp_path / "machine.yaml"
    machine.write_text("gpus: [24GiB]\nram: 64GiB\npcie: 4.0x16\n")
    assert plan(night, "--hardware", str(machine))["machine"]["gpu_bytes"] == [24 * 2**30]
    for arguments, words in (
        (("--hardware", str(machine), "--ram", "8GiB"), "both describe the machine"),
        (("--ram", "8GiB", "--measure"), "times this machine"),
        (("--vram", "a lot"), "is not a size"),
        (("--hardware", str(tmp_path / "gone.yaml")), "there is no hardware file"),
        (("--plots", str(tmp_path), "--plot-format", "gif"), "choose one of png, svg"),
    ):
        done = night.command("plan", str(night.config), *arguments)
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_without_documents_memory_is_planned_all_the_same(night: ANight) -> None:
    facts = plan(night, "--ram", "32GiB", "--set", f"source.path={night.folder}/gone.jsonl")
    assert facts["forecast"]["verdict"] == "resident"
    assert facts["quantities"]["work"]["value"] is None
    assert any("documents could not be read" in note for note in facts["notes"])


def test_an_unknown_kind_of_layer_is_named_and_refused(night: ANight, tmp_path: Path) -> None:
    kinds = ["full_attention"] * 31 + ["holographic_attention"]
    a_model(
        tmp_path / "model",
        model_type="qwen3",
        architectures=["Qwen3ForCausalLM"],
        head_dim=128,
        layer_types=kinds,
    )
    done = night.command("plan", str(night.config), "--ram", "32GiB", "--json")
    refused = json.loads(done.stdout)
    assert (done.returncode, refused["exit_code"]) == (2, 2)
    assert "cannot plan this layer kind: holographic_attention" in refused["error"]
    assert done.stderr.endswith(f"overnight: {refused['error']}\n")
    assert "Traceback" not in done.stderr


def test_a_cache_that_no_memory_holds_goes_to_the_disk(night: ANight) -> None:
    few = ("--vram", "8GiB", "--ram", "2GiB", "--set", "model.context_tokens=8192")
    assert plan(night, *few)["plan"]["placement"] == "device"  # the documents are short
    facts = plan(night, *few, "--set", "kv_cache.placement=disk")
    assert facts["plan"]["placement"] == "disk"
    assert facts["forecast"]["cache_place"] == "disk"
    assert value(facts, "disk_peak") > 0
    small = night.command(
        "plan", str(night.config), *few, "--disk", "nvme:2MiB", "--set", "kv_cache.placement=disk"
    ).stdout
    assert "the disk of the run directory does not hold" in small


def test_an_unknown_family_is_named_and_nothing_is_predicted(night: ANight, tmp_path: Path) -> None:
    a_model(tmp_path / "model", model_type="recurrent_gemma", architectures=["RecurrentGemmaForCausalLM"])
    facts = plan(night, "--ram", "32GiB", "--set", "model.context_tokens=1024")
    assert "cannot plan this layer kind" in facts["cannot_plan"]
    assert "recurrent_gemma" in facts["cannot_plan"]
    assert facts["quantities"] == {}
    words = night.command("plan", str(night.config), "--ram", "32GiB").stdout
    assert "memory is not predicted" in words


@pytest.mark.parametrize(
    ("stored", "known"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, True),
        ({"quant_method": "awq", "bits": 4}, False),
    ],
)
def test_weights_that_are_quantized_on_the_disk(
    night: ANight, tmp_path: Path, stored: dict[str, Any], known: bool
) -> None:
    a_model(tmp_path / "model", quantization_config=stored)
    facts = plan(night, "--vram", "24GiB", "--ram", "64GiB", "--set", "model.quantization=none")
    if known:
        assert value(facts, "weights_on_device") < 7e9
    else:
        assert "stored as awq" in facts["cannot_plan"]
        assert facts["quantities"] == {}


def test_what_does_not_fit_is_refused_with_its_remedies(night: ANight) -> None:
    facts = plan(night, "--vram", "4GiB", "--ram", "32GiB", "--set", "engine.weights=resident")
    assert facts["forecast"]["verdict"] == "does not fit"
    assert "engine.weights does not allow" in facts["refused"]
    assert any("device_map cpu" in step for step in facts["forecast"]["next_steps"])


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_plots(night: ANight, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    facts = plan(
        night, "--vram", "24GiB", "--ram", "64GiB", "--plots", str(tmp_path / "plots"), "--plot-format", kind
    )
    assert [Path(path).name for path in facts["plots"]] == [f"plan-memory.{kind}", f"plan-time.{kind}"]
    for path in facts["plots"]:
        assert Path(path).read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


@pytest.mark.full
def test_the_run_obeys_the_same_plan_and_sets_the_outcome_beside_it(
    tmp_path: Path, demo_model_folder: Path
) -> None:
    """A real run of the packaged model over short documents, in the plan's own numbers."""
    model = tmp_path / "model"
    shutil.copytree(demo_model_folder, model)
    extra = {"model": {"id": str(model), "quantization": "nf4", "dtype": "float32", "context_tokens": 512}}
    tasks = [{"name": "topic", "kind": "label", "instructions": "Which?", "labels": ["world", "sports"]}]
    night = ANight(tmp_path, documents(6, longest=4), tasks=tasks, extra=extra)
    foretold = plan(night)
    done = night.command("run", str(night.config), timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads((night.directory / "report.json").read_text())
    told = {name: fact for name, fact in foretold["plan"].items() if name != "reasons"}
    assert {name: fact for name, fact in report["plan"].items() if name != "reasons"} == told
    lines = {line["name"]: line for line in report["outcome"]["lines"]}
    assert lines["weights"]["ratio"] == pytest.approx(1, abs=0.01)
    assert 0.9 <= lines["RAM peak of the worker"]["ratio"] <= 1.03
    assert lines["work"]["measured"] > 0
    assert "## Plan and outcome" in (night.directory / "report.md").read_text()
