"""Every key is explained, and the page that explains them is that of the models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.config import Config
from pipeline.config.keys import Key, config_keys

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "configs" / "REFERENCE.md"


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["keys", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_page_is_that_of_the_models() -> None:
    assert PAGE.read_text(encoding="utf-8") == printed("--markdown"), (
        "overnight keys --markdown > configs/REFERENCE.md writes it again"
    )


@pytest.mark.parametrize("key", config_keys(), ids=lambda key: f"{key.key}{key.of and '-' + key.of}")
def test_every_key_is_explained(key: Key) -> None:
    assert len(key.meaning.split()) >= 3
    assert not key.meaning.endswith((".", ":", ";"))
    assert key.values
    assert "|" not in f"{key.values}{key.default}{key.meaning}", "it would end its cell of the table"


def _dotted(value: Any, prefix: str = "") -> set[str]:
    """Keys of a schema that refer to nothing, list items as ``[]``."""
    if isinstance(value, dict):
        return {
            name
            for key, inner in value.items()
            for name in {f"{prefix}{key}", *_dotted(inner, f"{prefix}{key}.")}
        }
    return set()


def test_no_key_of_the_models_is_missing() -> None:
    """The schema that pydantic makes of the models names the same keys: counted by another way."""
    schema = Config.model_json_schema()
    properties = sum(len(each.get("properties", {})) for each in schema["$defs"].values())
    sections = {"model", "kv_cache", "source", "tasks", "generation", "engine", "run"}
    assert set(schema["properties"]) == sections
    keys = config_keys()
    kinds = {key.of for key in keys} - {""}
    shared = [key for key in keys if key.key.startswith("tasks[].") and not key.of]
    assert (
        len(keys) + (len(kinds) - 1) * len(shared) == properties - 1
    )  # kv_cache.store is no key but a section


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configurations_and_their_page_agree(path: Path) -> None:
    names = {key.key.replace("tasks[].", "tasks.") for key in config_keys()}
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    used = _dotted({**raw, "tasks": {key: None for task in raw["tasks"] for key in task}})
    leaves = {name for name in used if not any(other.startswith(f"{name}.") for other in used)}
    free_form = ("model.max_memory.", "model.template_options.")
    assert {name for name in leaves if not name.startswith(free_form)} <= names


def test_a_part_of_the_keys() -> None:
    found = json.loads(printed("kv_cache.store", "--json"))["keys"]
    assert [key["key"].rsplit(".", 1)[0] for key in found] == ["kv_cache.store"] * 6
    assert found[1] == {
        "key": "kv_cache.store.quota",
        "values": "size",
        "default": "20GB",
        "meaning": "the most bytes on the disk, of all runs that use this store; 0: no store",
        "of": "",
    }
    assert "tasks[].abstain_below: null   (kind: label)" in printed("tasks.abstain_below")


def test_an_unknown_key_is_a_sentence() -> None:
    result = CliRunner().invoke(app, ["keys", "engine.decode"])
    assert "there is no key 'engine.decode'" in str(result.exception)
    result = CliRunner().invoke(app, ["keys", "engine.decoder"])
    assert "engine.decoder: this key is gone" in str(result.exception)


def test_defaults_are_read_back_as_they_are() -> None:
    keys = {key.key: key.default for key in config_keys()}
    least: dict[str, Any] = {
        "model": {"id": "a"},
        "source": {"path": "b"},
        "tasks": [{"name": "c", "kind": "summarize"}],
        "run": {"directory": "d"},
    }
    plain = Config.model_validate(least)
    for name in ("quota", "keep_free", "checkpoint_seconds"):
        least.setdefault("kv_cache", {}).setdefault("store", {})[name] = yaml.safe_load(
            keys[f"kv_cache.store.{name}"]
        )
    for section in ("model", "engine", "generation", "run"):
        for key, default in keys.items():
            if re.fullmatch(rf"{section}\.\w+", key) and default != "required":
                least.setdefault(section, {})[key.split(".")[1]] = yaml.safe_load(default)
    assert Config.model_validate(least) == plain
