"""Machines: what is found here, what a container leaves, what is described in words, what is measured once
and kept.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from pipeline.engine.model.nf4 import unpacking_rate
from pipeline.errors import ConfigError
from pipeline.system import hardware_rates
from pipeline.system.hardware import Hardware, Rates, available_ram_bytes, disk_of, probe
from pipeline.system.hardware_datasheet import (
    CARDS,
    Link,
    card_kind,
    card_of,
    named_card,
    parse_link,
    typical_card,
)
from pipeline.system.hardware_rates import machine_key, measured_rates, with_rates
from pipeline.system.hardware_spec import described, read_hardware
from pipeline.system.machine_load import OthersLoad

GIB = 2**30


def test_this_machine_is_found(tmp_path: Path) -> None:
    found = probe((tmp_path / "not" / "yet",))
    assert found.cores >= 1
    assert 0 < found.ram_bytes <= psutil.virtual_memory().total
    assert found.disks[0].free_bytes > 0
    assert disk_of(tmp_path).free_bytes == pytest.approx(found.disks[0].free_bytes, rel=0.01)


def group(folder: Path, limit: str, used: int, stat: str, version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = (
        ("memory.max", "memory.current")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


def test_a_second_version_group_limits_the_memory(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    group(tmp_path / "a" / "b", "max", 50 * 2**20, "anon 1\ninactive_file 0\n", 2)
    group(tmp_path / "a", str(200 * 2**20), 150 * 2**20, "anon 1\ninactive_file 30000000\n", 2)
    # the limit of the group above counts, its cache does not
    assert available_ram_bytes(tmp_path, own) == 50 * 2**20 + 30_000_000


def test_a_first_version_group_limits_the_memory(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/x\n4:memory:/x/y\n")
    group(
        tmp_path / "memory" / "x" / "y",
        str(100 * 2**20),
        80 * 2**20,
        "inactive_file 0\ntotal_inactive_file 10000000\n",
        1,
    )
    assert available_ram_bytes(tmp_path, own) == 20 * 2**20 + 10_000_000


def test_inside_a_container_the_mounted_group_is_its_own(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/docker/0123\n")  # a path of the host, not visible inside
    group(tmp_path, str(64 * 2**20), 2**20, "", 2)
    assert available_ram_bytes(tmp_path, own) == 63 * 2**20


def test_without_a_group_all_free_memory_counts(tmp_path: Path) -> None:
    free = available_ram_bytes(tmp_path, tmp_path / "absent")
    assert free == pytest.approx(psutil.virtual_memory().available, rel=0.2)


@pytest.mark.parametrize("text", ["4.0x16", "4x16", "PCIe 4.0 x16", "gen4 x16", "4.0", " 4.0 × 16 "])
def test_links_are_read_as_people_write_them(text: str) -> None:
    assert parse_link(text) == Link(4, 16)


def test_links_are_as_fast_as_the_specification_says() -> None:
    assert Link(3, 16).theoretical_bytes_per_second == pytest.approx(15.75e9, rel=0.001)
    assert Link(4, 16).theoretical_bytes_per_second == pytest.approx(31.5e9, rel=0.001)
    assert Link(5, 8).theoretical_bytes_per_second == pytest.approx(31.5e9, rel=0.001)
    assert Link(4, 16).pinned_bytes_per_second == pytest.approx(25e9, rel=0.02)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fast", "is not a PCI Express link"),
        ("9.0x16", "there is no PCI Express 9.0"),
        ("4.0x7", "lanes, not 7"),
    ],
)
def test_wrong_links_are_explained(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_link(text)


def test_a_machine_in_words() -> None:
    machine = described("24GiB", "64GiB", "4.0x16", cores=12)
    assert (machine.gpu_bytes, machine.ram_bytes, machine.cores, machine.link) == (
        (24 * GIB,),
        64 * GIB,
        12,
        "PCIe 4.0 x16",
    )
    assert machine.rates.to_device_pinned_bytes_per_second == pytest.approx(25.2e9, rel=0.01)
    assert described("2x24GiB").gpu_bytes == (24 * GIB, 24 * GIB)
    assert described("24GiB,8GiB").vram_bytes == 32 * GIB
    bare = described(ram="16GiB")
    assert bare.gpu_bytes == ()
    assert bare.rates.to_device_pinned_bytes_per_second is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"vram": "much"}, "--vram: 'much' is not a size"),
        ({"ram": "64"}, "less than a MiB; write a unit"),
        ({"vram": "8GiB", "pcie": "x"}, "not a PCI Express link"),
        ({"cores": 0}, "at least one"),
        ({"disk": "tape"}, "not a kind of disk"),
    ],
)
def test_wrong_words_are_explained(words: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        described(**words)  # type: ignore[arg-type]


def test_a_machine_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(
        "gpus: [{memory: 24GiB, name: RTX 3090, count: 2}]\nram: 64GiB\ncores: 16\npcie: 3.0x8\n"
        "disks: [{path: /data, free: 500GB, kind: sata}]\nrates: {matmul_per_second: 7.0e13}\n"
    )
    machine = read_hardware(path)
    assert machine.gpu_names == ("RTX 3090", "RTX 3090")
    assert machine.disks[0].free_bytes == 500 * 10**9
    assert machine.rates.matmul_per_second == 7e13
    assert machine.rates.origin == "given"
    assert machine.rates.disk_read_bytes_per_second == 0.55e9
    path.with_suffix(".json").write_text(json.dumps({"ram": "16GiB", "cores": 2}))
    assert read_hardware(path.with_suffix(".json")).cores == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1]", "describes no machine"),
        ("ram: 1GiB\nrum: 2", "unknown key rum"),
        ("cores: 2", "ram is missing"),
        ("ram: 1GiB\ncores: many", "whole number"),
        ("ram: 1GiB\ngpus: 24GiB", "gpus must be a list"),
        ("ram: 1GiB\ndisks: [fast]", "a disk is written as"),
        ("ram: 1GiB\nrates: {speed: 3}", "unknown rates speed"),
        ("ram: 1GiB\nrates: {matmul_per_second: 0}", "larger than nought"),
        ("ram: [", "no valid YAML"),
    ],
)
def test_wrong_files_are_explained(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_hardware(path)
    with pytest.raises(ConfigError, match="there is no hardware file"):
        read_hardware(tmp_path / "absent.yaml")


def test_typical_cards_grow_with_memory() -> None:
    assert typical_card(2 * GIB) is CARDS[0]
    assert typical_card(int(23.6 * GIB)).memory_gib == 24
    assert typical_card(500 * GIB).memory_gib == 80


class Quiet(OthersLoad):
    """A machine on which nothing else runs."""

    busy_cores = 0.0


class Busy(OthersLoad):
    busy_cores = 1.5


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_rates, "OthersLoad", Quiet)


def test_rates_say_beside_what_they_were_measured_and_are_measured_again_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured() -> Rates:
        return measured_rates(tmp_path / "cache", tmp_path, unpacking=lambda _: None)

    numbers = iter(range(1, 9))
    monkeypatch.setattr(
        hardware_rates, "_measure", lambda *_, **__: Rates("measured here", float(next(numbers)))
    )
    monkeypatch.setattr(hardware_rates, "OthersLoad", Busy)
    first = measured()
    assert first.origin.startswith("measured here while other programs used 1.5 of ")
    assert measured() == first  # it would be no better now
    monkeypatch.setattr(hardware_rates, "OthersLoad", Quiet)
    second = measured()
    assert (second.origin, second.memory_bytes_per_second) == ("measured here", 2)
    monkeypatch.setattr(hardware_rates, "OthersLoad", Busy)
    assert measured() == second


@pytest.mark.usefixtures("quiet")
def test_rates_are_measured_once_and_kept(tmp_path: Path) -> None:
    first = measured_rates(tmp_path / "cache", tmp_path / "scratch", unpacking=unpacking_rate)
    assert first.memory_bytes_per_second is not None
    assert 1e8 < first.memory_bytes_per_second < 1e13
    assert first.matmul_per_second is not None
    assert first.matmul_per_second > 1e8
    assert first.disk_read_bytes_per_second is not None
    assert first.dequantize_weights_per_second is not None
    assert first.dequantize_weights_per_second > 1e7
    assert first.to_device_bytes_per_second is None or first.to_device_bytes_per_second > 0
    # a second measurement would differ in its last digits
    assert measured_rates(tmp_path / "cache", tmp_path / "scratch", unpacking=unpacking_rate) == first
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"format": 99, "machines": {}}', '{"format": 2, "machines": {"KEY": {"origin": "x"}}}'],
)
@pytest.mark.usefixtures("quiet")
def test_a_damaged_cache_is_measured_again(content: str, tmp_path: Path) -> None:
    (tmp_path / "hardware.json").write_text(content.replace("KEY", machine_key(tmp_path, "float32")))
    assert measured_rates(tmp_path, tmp_path, unpacking=unpacking_rate).origin == "measured here"
    assert json.loads((tmp_path / "hardware.json").read_text())["format"] == 2


def test_a_disk_that_cannot_be_written_leaves_its_rates_unknown(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = measured_rates(tmp_path / "cache", tmp_path / "file" / "below", unpacking=lambda _: None)
    assert found.disk_read_bytes_per_second is None
    assert found.memory_bytes_per_second is not None


def test_other_numbers_are_another_entry(tmp_path: Path) -> None:
    assert machine_key(tmp_path, "float32") != machine_key(tmp_path, "bfloat16")


def test_rates_are_plain_numbers() -> None:
    assert with_rates(described(ram="8GiB"), Rates("x")).rates == Rates("x")
    assert all(value is None or isinstance(value, str | float) for value in asdict(Rates()).values())


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("rtx4060", "RTX 4060"),
        ("NVIDIA GeForce RTX 4060", "RTX 4060"),
        ("NVIDIA GeForce RTX 4060 Ti", "RTX 4060 Ti"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4070 Ti", None),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA A10G", None),
        ("24GiB", None),
    ],
)
def test_cards_by_name(written: str, name: str | None) -> None:
    found = named_card(written)
    assert (found.name if found else None) == name


def test_a_card_is_what_it_says_of_itself() -> None:
    machine = Hardware(8, GIB, (8 * GIB, 24 * GIB), ("a card", "RTX 3090"), gpu_processors=((24, 8, 9),))
    assert card_of(machine, 0).multiprocessors == 24
    assert card_of(machine, 0).capability == (8, 9)
    assert card_of(machine, 1) == named_card("rtx3090")
    assert card_kind("of no name", 12 * GIB) is typical_card(12 * GIB)


def test_a_machine_with_a_named_card() -> None:
    found = described("rtx4060", "32GiB")
    assert found.gpu_bytes == (8 * GIB,)
    assert found.gpu_names == ("RTX 4060",)
    assert found.rates.memory_bytes_per_second == 272e9
    assert described("2x24GiB").gpu_names == ("", "")
    assert (
        described("8GiB,rtx3090").rates.memory_bytes_per_second
        == typical_card(8 * GIB).memory_bytes_per_second
    )
