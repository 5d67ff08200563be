"""Weights passing through the device: what stays, how many rows share a sweep, and what sets the pace."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.planner.budget import Need, rooms
from pipeline.planner.forecast import Forecast, Wish, decide, describe
from pipeline.planner.memory import LIBRARY_BYTES, PROCESS_BYTES
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.roofline import fetch_seconds
from pipeline.planner.weight_streaming import best_sweep, micro_batch_rows
from pipeline.system.hardware import Disk, Hardware, Rates
from pipeline.system.hardware_spec import described
from tests.planner.known_models import known_shape

GIB, MIB = 2**30, 2**20


def tiny() -> ModelShape:
    return known_shape("TinyLlama 1.1B")


def large() -> ModelShape:
    return known_shape("Llama 2 70B")


# Two cores: memory, products, a disk, nf4 unpacked at a billion numbers a second.
CORES = Rates("a test", 10e9, 100e9, 1.5e9, 1e9, dequantize_weights_per_second=1e9)


def machine(ram: str, rates: Rates = CORES, disk_bytes: int = 10**11) -> Hardware:
    return replace(described(ram=ram), disks=(Disk("/", disk_bytes),), rates=rates)


def tight(ram: str = "1500MiB", rates: Rates = CORES, **wish: Any) -> Forecast:
    return decide(tiny(), machine(ram, rates), Wish("nf4", "float32", 1024, **{"longest_tokens": 64, **wish}))


def pace(found: Forecast) -> float:
    assert found.step is not None
    return found.rows / found.step.seconds


def test_many_rows_share_a_sweep_and_weights_make_room_for_them() -> None:
    alone, many = tight(rows=1), tight()
    assert (alone.verdict, many.verdict) == ("split", "split")
    assert many.rows >= 64
    assert many.weights_bytes["device"] < alone.weights_bytes["device"]
    assert pace(many) > 12 * pace(alone)
    assert f"up to {many.rows} rows share a sweep" in "\n".join(describe(many))


def test_no_other_number_of_rows_is_faster() -> None:
    best = pace(tight())
    assert all(pace(tight(rows=rows)) <= 1.06 * best for rows in (1, 8, 32, 64, 80, 100, 128, 256))


def test_what_sets_the_pace_is_named() -> None:
    slow_disk = replace(CORES, disk_read_bytes_per_second=20e6)
    words = "\n".join(describe(tight("900MiB", slow_disk)))
    assert "computing does not hide it" in words
    assert "what sets the pace is fetching what is not on the device" in words
    assert "what sets the pace is computing" in "\n".join(describe(tight()))
    assert "what sets the pace is unpacking the weights" in "\n".join(describe(tight(rows=1)))


def test_a_sweep_leaves_out_tables_of_which_rows_are_read() -> None:
    found = tight("900MiB")
    embeddings = tiny().vocabulary * tiny().hidden * 4
    assert found.transfer_bytes == found.weights_bytes["disk"] - embeddings


def test_what_works_beside_the_weights_is_counted() -> None:
    found = tight("900MiB")
    assert found.sweep is not None
    assert (
        found.ram_peak_bytes
        >= PROCESS_BYTES + LIBRARY_BYTES + found.weights_bytes["device"] + found.sweep.working_bytes
    )
    assert found.ram_peak_bytes <= 900 * MIB
    assert found.ram_mapped_bytes == 0  # prepared files are read, not mapped


def test_where_no_layer_fits_single_matrices_do() -> None:
    layers, modules = tight("1500MiB", rows=1).sweep, tight("720MiB").sweep
    assert layers is not None
    assert modules is not None
    assert (layers.grain, modules.grain) == ("layer", "module")
    plain_layer = 4 * sum(weight.parameters for weight in tiny().weights if weight.shrinks) // tiny().layers
    assert modules.working_bytes < plain_layer / 2 < layers.working_bytes
    assert tight("500MiB").verdict == "does not fit"


def test_caches_on_the_disk_must_fit_there() -> None:
    wish = Wish("nf4", "float32", 1024, rows=8, cache_place="disk")
    large, small = (decide(tiny(), machine("900MiB", disk_bytes=size), wish) for size in (10**10, 10**6))
    assert (large.verdict, large.cache_place) == ("split", "disk")
    assert small.verdict == "does not fit"
    assert "RAM and disk together do not hold it" in "\n".join(describe(small))


def test_weights_that_fit_are_streamed_where_they_leave_no_room_for_rows() -> None:
    paces = {mib: pace(tight(f"{mib}MiB")) for mib in (1600, 1700, 1720, 1760, 1800, 2000, 3000)}
    assert all(more >= 0.7 * less for less, more in itertools.pairwise(paces.values()))
    found = tight("1720MiB")
    assert found.verdict == "split"
    assert "but that leaves room for" in "\n".join(describe(found))
    assert tight("3GiB").verdict == "resident"
    assert tight("1720MiB", may_stream=False).verdict == "resident"


def test_few_rows_of_short_documents_have_room_for_a_prompt() -> None:
    for rows in (1, 2, 4):
        found = tight("1300MiB", rows=rows)
        assert found.verdict == "split"
        assert found.batch_tokens >= 512 or found.cache_room_bytes >= tiny().kv_bytes(512, "float32")


def test_all_experts_of_a_layer_are_one_unit() -> None:
    mixture = known_shape("Mixtral 8x7B")
    experts = mixture.largest_module_bytes("nf4", "bfloat16")
    assert experts == pytest.approx(8 * 3 * 4096 * 14336 * 2)
    found = decide(mixture, machine("12GiB"), Wish("nf4", "bfloat16", 1024))
    assert found.sweep is not None
    assert found.sweep.working_bytes >= 2 * experts
    assert decide(mixture, machine("5GiB"), Wish("nf4", "bfloat16", 1024)).verdict == "does not fit"


def test_only_the_first_of_several_cards_is_streamed_through() -> None:
    one, two = (
        replace(described(vram, "64GiB"), disks=(Disk("/", 10**12),)) for vram in ("16GiB", "2x16GiB")
    )
    wish = Wish("nf4", "float16", 4096, longest_tokens=1000)
    assert decide(large(), one, wish).sweep == decide(large(), two, wish).sweep


def test_weights_that_do_not_fit_and_may_not_be_streamed_leave_no_room() -> None:
    found = tight("1500MiB", most_weights_in_ram=MIB)
    assert found.verdict == "does not fit"
    assert found.cache_room_bytes == 0  # so that the run refuses, too


def test_without_rates_as_many_rows_as_fit() -> None:
    found = tight(rates=Rates())
    assert found.verdict == "split"
    assert found.step is None
    assert found.rows >= 64


def test_on_a_card_disk_and_link_work_side_by_side() -> None:
    rates = Rates("a test", 900e9, 70e12, 3e9, 2e9, 20e9, 10e9, 20e9, 10e9)
    assert fetch_seconds(3 * 10**9, 0, rates, on_card=True) == pytest.approx(1)
    assert fetch_seconds(3 * 10**9, 37 * 10**9, rates, on_card=True) == pytest.approx(2)
    assert fetch_seconds(1, 0, replace(rates, disk_read_bytes_per_second=None), on_card=True) is None
    card = replace(described("24GiB", "64GiB"), disks=(Disk("/", 10**12),), rates=rates)
    found, alone = (
        decide(large(), card, Wish("nf4", "float16", 4096, longest_tokens=1000, rows=rows))
        for rows in (None, 1)
    )
    assert (found.verdict, alone.verdict) == ("split", "split")
    assert found.vram_peak_bytes <= 24 * GIB
    assert found.rows >= 16
    assert pace(found) > 8 * pace(alone)


def test_micro_batches_decode_in_the_memory_of_a_prefill_chunk() -> None:
    for shape in (tiny(), large()):
        rows = micro_batch_rows(shape, "float32", 1024, 2048)
        assert rows >= 32
        assert rows == 32 or shape.activation_bytes(rows, "float32", rows, 2048) <= shape.activation_bytes(
            1024, "float32", 1, 1024
        )


@given(st.integers(600, 3000), st.integers(0, 2000), st.integers(16, 1024), st.sampled_from(["nf4", "int8"]))
def test_never_more_than_the_device_holds(mib: int, more: int, tokens: int, quantization: str) -> None:
    wish = Wish(quantization, "float32", 1024, longest_tokens=tokens)
    have = rooms(machine(f"{mib}MiB"))
    need = Need.of(tiny(), wish, have.chunk_tokens(tiny(), wish), have.on_card)
    found = best_sweep(tiny(), need, have, wish, "device", CORES, have.chunk_tokens(tiny(), wish))
    if found is None:
        return
    caches = need.row_bytes * found.rows
    assert found.weights["device"] + found.working_bytes + found.pass_bytes + caches <= have.device_bytes
    assert sum(found.weights.values()) == need.weights_bytes
    assert (
        found.weights["device"] + found.swept_bytes + tiny().vocabulary * tiny().hidden * 4
        == need.weights_bytes
    )
    roomier = best_sweep(
        tiny(),
        need,
        rooms(machine(f"{mib + more}MiB")),
        wish,
        "device",
        CORES,
        have.chunk_tokens(tiny(), wish),
    )
    assert roomier is not None


def test_max_memory_bounds_weights_not_what_works_beside_them() -> None:
    free = {"ram": "8GiB", "longest_tokens": 256}
    allowed = tight(**free, most_weights_in_ram=400 * MIB)
    assert tight(**free).verdict == "resident"
    assert allowed.verdict == "split"
    assert allowed.rows >= 64  # caches may be where weights may not
    assert allowed.sweep is not None
    assert allowed.weights_bytes["device"] + allowed.sweep.working_bytes <= 400 * MIB
    assert any("model.max_memory" in step for step in allowed.next_steps)
    assert tight(**free, most_weights_in_ram=MIB).verdict == "does not fit"


def test_plain_weights_are_streamed_where_the_page_cache_cannot_hold_what_would_be_offloaded() -> None:
    small, large = (replace(machine(f"{gib}GiB"), disks=(Disk("/", 10**12),)) for gib in (3, 16))
    found = decide(tiny(), small, Wish("none", "float32", 1024, longest_tokens=500))
    assert found.verdict == "split"
    assert found.sweep is not None
    assert found.ram_mapped_bytes == 0
    words = "\n".join(describe(found))
    assert "page cache cannot hold what is on the disk" in words
    assert "- weights are streamed: " in words
    # not even a sweep holds: as before
    assert decide(tiny(), small, Wish("none", "float32", 1024, most_weights_in_ram=2**20)).sweep is None
    held = decide(tiny(), large, Wish("none", "float32", 1024, longest_tokens=500, most_weights_in_ram=2**30))
    assert (held.verdict, held.sweep) == ("split", None)  # plain offload: pages are used where they lie
    assert "unquantized weights may be split" in "\n".join(describe(held))
    kept = decide(tiny(), small, Wish("none", "float32", 1024, longest_tokens=500, may_stream=False))
    assert (kept.verdict, kept.sweep) == ("split", None)
