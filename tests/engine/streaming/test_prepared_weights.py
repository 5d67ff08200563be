"""Prepared weights: the library's own numbers, made once, resumed after a kill, rebuilt where damaged, within
memory and quota.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.engine.model.identity import weights_identity
from pipeline.engine.model.library_logging import import_bitsandbytes
from pipeline.engine.model.location import locate
from pipeline.engine.model.nf4 import dequantize, quantizing_in_pieces
from pipeline.engine.streaming import prepared_weights as module
from pipeline.engine.streaming.prepared_weights import Prepared, Wanted, keep_within, prepare
from pipeline.errors import ConfigError, DoesNotFit
from tests.engine.small_models import save_llama
from tests.engine.streaming.opened import configured, opened


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_llama(tmp_path / "model")


def wanted(folder: Path, quantization: str = "nf4") -> Wanted:
    config = configured(folder, quantization).model
    return Wanted(config, locate(config), "float32", weights_identity(config), torch.device("cpu"))


def logits(folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = opened(folder, "nf4").model(torch.tensor([[5, 6, 7, 8]])).logits
        return result


def test_files_are_safetensors_with_the_library_s_numbers(folder: Path) -> None:
    found = prepare(wanted(folder), lambda _: None)
    stored = load_file(found.folder / found.files["layer-00002"][0].file)
    name = "model.layers.2.mlp.up_proj.weight"
    original = load_file(folder / "model.safetensors")[name]
    functional = import_bitsandbytes().functional
    packed, state = functional.quantize_4bit(original, quant_type="nf4", compress_statistics=True)
    assert torch.equal(stored[name], packed)
    assert torch.equal(stored[f"{name}.absmax"], state.absmax)
    rows = [load_file(found.folder / block.file) for block in found.files["lm_head.weight"]]
    assert torch.equal(
        torch.cat(list(rows[0].values())), load_file(folder / "model.safetensors")["lm_head.weight"]
    )


@pytest.mark.parametrize("shape", [(64, 128), (33, 64), (1, 128), (5, 192), (300, 320)])
@pytest.mark.parametrize("nested", [True, False])
def test_dequantized_bits_are_the_library_s(shape: tuple[int, int], nested: bool) -> None:
    functional = import_bitsandbytes().functional
    packed, state = functional.quantize_4bit(torch.randn(shape), quant_type="nf4", compress_statistics=nested)
    for dtype in (torch.float32, torch.bfloat16):
        state.dtype = dtype
        out = torch.empty(shape, dtype=dtype)
        dequantize(packed, state, out)
        assert torch.equal(out, functional.dequantize_4bit(packed, state))


@pytest.mark.parametrize("shape", [(64, 96), (3, 100), (5, 7), (2, 32), (1, 65)])
def test_rows_that_are_no_multiple_of_a_block_are_right_where_the_library_errs(
    shape: tuple[int, int],
) -> None:
    functional = import_bitsandbytes().functional
    weight = torch.randn(shape)
    packed, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=False)
    nibbles = (
        torch.stack([packed.view(-1) >> 4, packed.view(-1) & 15], dim=1).view(-1)[: weight.numel()].long()
    )
    expected = (state.code[nibbles] * state.absmax.repeat_interleave(64)[: weight.numel()]).view(shape)
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(shape, dtype=dtype)
        dequantize(packed, state, out)
        assert torch.equal(out, expected.to(dtype))
    assert float((expected - weight).abs().max()) < 0.2 * float(weight.abs().max())


@pytest.mark.parametrize("nested", [True, False])
def test_quantizing_in_pieces_gives_the_same_bits(nested: bool) -> None:
    functional = import_bitsandbytes().functional
    weight = torch.randn(96, 320) * torch.linspace(0.1, 3, 96)[:, None]
    packed, state = functional.quantize_4bit(
        weight, blocksize=64, quant_type="nf4", compress_statistics=nested
    )
    with quantizing_in_pieces(1000):
        again, its = functional.quantize_4bit(
            weight, blocksize=64, quant_type="nf4", compress_statistics=nested
        )
    assert torch.equal(packed, again)
    one, other = state.as_dict(packed=True), its.as_dict(packed=True)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_it_is_made_once(folder: Path) -> None:
    said: list[str] = []
    first = prepare(wanted(folder), said.append)
    times = {file.name: file.stat().st_mtime_ns for file in first.folder.iterdir()}
    second = prepare(wanted(folder), said.append)
    assert sum("preparing" in line for line in said) == 1
    assert second.files == first.files
    assert {file.name: file.stat().st_mtime_ns for file in second.folder.iterdir()} == times
    assert prepare(wanted(folder, "none"), said.append).folder != first.folder


def test_an_interrupted_preparation_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits(folder)
    for path in wanted_folder(folder).iterdir():
        path.unlink()
    make, made = Prepared._make, []

    def dying(self: Prepared, group: str) -> None:
        if len(made) == 3:
            (self.folder / ".abc.part").write_bytes(b"half a file")
            raise KeyboardInterrupt
        made.append(group)
        make(self, group)

    with monkeypatch.context() as patch:
        patch.setattr(Prepared, "_make", dying)
        with pytest.raises(KeyboardInterrupt):
            prepare(wanted(folder), lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(Prepared, "_make", lambda self, group: (made.append(group), make(self, group)))
        found = prepare(wanted(folder), lambda _: None)
    assert sorted(made) == sorted(found.files)  # each once
    assert not list(found.folder.glob(".*"))
    assert torch.equal(logits(folder), expected)


def wanted_folder(folder: Path) -> Path:
    return prepare(wanted(folder), lambda _: None).folder


@pytest.mark.parametrize(
    "group", ["layer-00001", "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"]
)
def test_a_damaged_file_is_found_and_made_again(folder: Path, group: str) -> None:
    expected = logits(folder)
    found = prepare(wanted(folder), lambda _: None)
    block = found.files[group][0]
    path = found.folder / block.file
    data = bytearray(path.read_bytes())
    data[block.offset + block.bytes // 2] ^= 4
    path.write_bytes(data)
    loaded = opened(folder, "nf4")
    with torch.inference_mode():
        assert torch.equal(loaded.model(torch.tensor([[5, 6, 7, 8]])).logits, expected)
    assert loaded.hooks.weights._prepared.rebuilt == [block.file]
    data[block.offset + block.bytes // 2] ^= 4
    assert path.read_bytes() == bytes(data)


def test_damage_under_way_is_found_in_the_next_sweep(folder: Path) -> None:
    loaded = opened(folder, "nf4")
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        expected = loaded.model(ids).logits
        block = loaded.hooks.weights._prepared.files["layer-00002"][0]
        with (loaded.hooks.weights._prepared.folder / block.file).open("r+b") as file:
            file.seek(block.offset)
            file.write(b"\xff" * 64)
        assert torch.equal(loaded.model(ids).logits, expected)
    assert loaded.hooks.weights._prepared.rebuilt == [block.file]


@pytest.mark.parametrize("harm", ["cut", "gone", "manifest"])
def test_files_that_are_cut_or_gone_are_made_again(folder: Path, harm: str) -> None:
    expected = logits(folder)
    found = prepare(wanted(folder), lambda _: None)
    path = found.folder / found.files["layer-00003"][0].file
    if harm == "cut":
        os.truncate(path, path.stat().st_size - 1)
    elif harm == "gone":
        path.unlink()
    else:
        (found.folder / "manifest.json").write_text('{"key"')
    assert torch.equal(logits(folder), expected)


def test_a_missing_weight_is_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack model\.layers\.1\.mlp\.up_proj\.weight"):
        prepare(wanted(folder), lambda _: None)


def test_a_cut_weight_file_is_a_sentence(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ConfigError, match="cut short; fetch it again"):
        prepare(wanted(folder), lambda _: None)


def test_a_decoder_that_is_no_list_of_layers_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "model_type": "longcat_flash_unheard"}))
    with pytest.raises(ConfigError):
        prepare(wanted(folder), lambda _: None)


def test_no_room_on_the_disk_is_said_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        free = 1000

    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: Full)
    with pytest.raises(DoesNotFit, match=r"prepared weights of .* take about .* are free there"):
        prepare(wanted(folder), lambda _: None)


def test_plain_weights_that_cannot_be_prepared_may_be_offloaded_instead(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        free = 1000

    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: Full)
    with pytest.raises(
        DoesNotFit, match=r"are free there.*; with engine\.weights: resident the library offloads them"
    ):
        opened(folder, "none", 600_000)
    with pytest.raises(DoesNotFit) as refused:
        opened(folder, "nf4", 600_000)
    assert "resident" not in str(refused.value)


def test_the_quota_removes_what_was_used_longest_ago(folder: Path, cache: Path) -> None:
    first, second = prepare(wanted(folder), lambda _: None), prepare(wanted(folder, "int8"), lambda _: None)
    os.utime(first.folder, (1, 1))
    third: Any = prepare(wanted(folder, "none"), lambda _: None, None)
    sizes = [sum(file.stat().st_size for file in found.folder.iterdir()) for found in (second, third)]
    keep_within(cache / "prepared", sum(sizes), keep=third.folder.name)
    assert not first.folder.exists()
    assert second.folder.exists()
    keep_within(cache / "prepared", 1, keep=third.folder.name)
    assert not second.folder.exists()
    assert third.folder.exists()
