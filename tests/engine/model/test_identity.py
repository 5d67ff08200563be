"""Identity and location: what changes a model changes its identity, what does not does not; the Hub's errors
are sentences.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from pipeline.config import ModelConfig
from pipeline.engine.model import location as module
from pipeline.engine.model.identity import tokenizer_identity, weights_identity
from pipeline.engine.model.loading import load_model
from pipeline.engine.model.location import locate
from pipeline.engine.model.tokenizer import load_tokenizer
from pipeline.errors import ConfigError
from tests.engine.small_models import save_llama

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_llama(tmp_path / "model")


def identity(folder: Path) -> dict[str, str]:
    return weights_identity(ModelConfig(id=str(folder)))


def test_a_moved_folder_is_the_same_model(model: Path, tmp_path: Path) -> None:
    before = identity(model), tokenizer_identity(locate(ModelConfig(id=str(model))))
    other = tmp_path / "elsewhere"
    shutil.copytree(model, other)
    assert (identity(other), tokenizer_identity(locate(ModelConfig(id=str(other))))) == before


def test_what_tools_write_about_themselves_does_not_count(model: Path) -> None:
    before = identity(model)
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "transformers_version": "9.9"}))
    assert identity(model) == before
    path.write_text(json.dumps({**json.loads(path.read_text()), "rms_norm_eps": 1e-3}))
    assert identity(model) != before


def test_one_trained_tensor_is_another_model(model: Path) -> None:
    before = identity(model)
    weights = load_file(model / "model.safetensors")
    weights["model.layers.2.self_attn.v_proj.weight"] += 1e-3
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert identity(model) != before


def test_another_seed_is_another_model(model: Path, tmp_path: Path) -> None:
    assert identity(save_llama(tmp_path / "other", seed=1)) != identity(model)


def test_a_damaged_file_is_a_sentence(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ConfigError, match="damaged"):
        identity(model)


def test_the_tokenizer_counts_with_its_template(model: Path) -> None:
    place = locate(ModelConfig(id=str(model)))
    seen = {tokenizer_identity(place)}
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    seen.add(tokenizer_identity(place))
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    seen.add(tokenizer_identity(place))
    path = model / "tokenizer.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps(plain, indent=7))
    seen.add(tokenizer_identity(place))  # laid out otherwise: the same
    plain["added_tokens"][0]["lstrip"] = True
    path.write_text(json.dumps(plain))
    seen.add(tokenizer_identity(place))
    assert len(seen) == 4


def test_the_packaged_model_is_known_by_its_file(demo_model_folder: Path) -> None:
    found = weights_identity(ModelConfig(id="smollm2-135m-instruct"))
    assert found["model"] == "smollm2-135m-instruct"
    assert found["gguf"][:16] in demo_model_folder.name


@pytest.fixture
def hub(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local Hub cache that holds one snapshot, and no network."""
    cache = tmp_path / "hub"
    repository = cache / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    shutil.copytree(model, repository / "snapshots" / COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    module._snapshot.cache_clear()
    return repository / "snapshots" / COMMIT


def test_a_snapshot_of_the_hub_is_known_by_its_commit_and_loads_offline(hub: Path, tmp_path: Path) -> None:
    config = ModelConfig(id="someone/tiny", quantization="none")
    place = locate(config)
    assert (place.folder, place.commit) == (hub, COMMIT)
    assert weights_identity(config) == {"repository": "someone/tiny", "commit": COMMIT}
    assert load_tokenizer(config).vocab_size > 256
    loaded = load_model(config, "float32", tmp_path / "offload")
    assert loaded.model(input_ids=torch.tensor([[5, 6]])).logits.shape[:2] == (1, 2)


def test_what_is_not_in_the_cache_is_a_sentence(hub: Path) -> None:
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        locate(ModelConfig(id="someone/else"))
    with pytest.raises(ConfigError, match="revision v2"):
        locate(ModelConfig(id="someone/tiny", revision="v2"))


def test_a_snapshot_without_weights_is_a_sentence(hub: Path, tmp_path: Path) -> None:
    (hub / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="no safetensors weights"):
        load_model(ModelConfig(id="someone/tiny", quantization="none"), "float32", tmp_path / "offload")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./no/such/folder", "neither an existing folder nor a Hub id"),
        ("a/b/c", "neither an existing folder nor a Hub id"),
        ("someone/with space", "neither an existing folder nor a Hub id"),
    ],
)
def test_names_that_cannot_be_models(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        locate(ModelConfig(id=name))


def test_places_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"without config\.json"):
        locate(ModelConfig(id=str(tmp_path)))
    (tmp_path / "model.gguf").write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        locate(ModelConfig(id=str(tmp_path / "model.gguf")))


def test_an_index_that_points_outside_is_refused(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "../../secret.safetensors"}})
    )
    with pytest.raises(ConfigError, match="outside of its folder"):
        identity(model)
