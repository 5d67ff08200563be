"""The decision: each of its steps, the sentences, and that more memory never makes it worse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.planner.forecast import Forecast, Wish, decide, describe
from pipeline.planner.memory import LIBRARY_BYTES, PROCESS_BYTES
from pipeline.system.hardware import Disk, Hardware, Rates
from pipeline.system.hardware_spec import described
from tests.planner.known_models import VARIED, known_shape
from tests.planner.loads import load_of

GIB = 2**30
ORDER = ("does not fit", "split", "cache offloaded", "resident")


def forecast(
    name: str, machine: Hardware, quantization: str = "none", context: int = 4096, **wish: Any
) -> Forecast:
    return decide(known_shape(name), machine, Wish(quantization, "float16", context, **wish))


def words(found: Forecast) -> str:
    return "\n".join(describe(found))


def with_disk(machine: Hardware, free: int = 200 * 10**9) -> Hardware:
    return replace(machine, disks=(Disk("/", free),))


def test_what_fits_stays_on_the_card() -> None:
    found = forecast("Llama 3 8B", described("24GiB", "64GiB"))
    assert (found.verdict, found.cache_place) == ("resident", "device")
    assert found.vram_peak_bytes <= 0.9 * 24 * GIB
    assert found.ram_peak_bytes - found.ram_mapped_bytes == PROCESS_BYTES + LIBRARY_BYTES
    assert found.disk_peak_bytes == 0
    assert found.step is not None
    assert found.step.slowdown == 1
    assert "serve it with vLLM or TGI" in words(found)


def test_what_does_not_fit_is_told_to_quantize_but_stays_as_asked() -> None:
    found = forecast("Llama 3 8B", with_disk(described("8GiB", "32GiB")))
    assert found.verdict == "split"
    assert sum(found.weights_bytes.values()) == known_shape("Llama 3 8B").weights_bytes("none", "float16")
    assert found.weights_bytes["device"] > 0
    assert found.weights_bytes["ram"] > 0
    assert any(
        "model.quantization nf4" in step and "everything fits on the graphics card" in step
        for step in found.next_steps
    )
    assert found.step is not None
    assert found.step.slowdown > 3
    assert "computing does not hide it" in words(found)


def test_the_rest_of_a_split_goes_to_the_disk() -> None:
    found = forecast("Llama 2 70B", with_disk(described("24GiB", "64GiB")))
    assert found.verdict == "split"
    assert found.weights_bytes["ram"] > 0
    assert found.weights_bytes["disk"] > 0
    assert found.disk_peak_bytes == found.weights_bytes["disk"]
    assert forecast("Llama 2 70B", with_disk(described("24GiB", "64GiB"), 10**9)).verdict == "does not fit"


def test_quantized_weights_are_streamed_unless_that_is_not_allowed() -> None:
    found = forecast("Llama 2 70B", with_disk(described("24GiB", "128GiB")), "nf4")
    assert found.verdict == "split"
    assert "weights in nf4 are streamed" in words(found)
    assert found.weights_bytes["ram"] > 10 * GIB
    assert found.step is not None
    assert found.step.transfer_seconds > 0
    found = forecast("Llama 2 70B", with_disk(described("24GiB", "128GiB")), "nf4", may_stream=False)
    assert found.verdict == "does not fit"
    assert not found.fits
    assert "engine.weights does not allow" in words(found)
    assert any("more VRAM would hold everything" in step for step in found.next_steps)


def test_a_cache_that_overflows_goes_to_ram_and_mha_is_named() -> None:
    found = forecast("Llama 2 7B", described("24GiB", "64GiB", "4.0x16"), context=32768)
    assert (found.verdict, found.cache_place) == ("cache offloaded", "ram")
    assert found.ram_peak_bytes >= 16 * GIB
    assert found.step is not None
    assert found.step.transfer_seconds > 0.6
    assert any(
        "(MHA); a GQA model of this size with 8 KV heads would need 4.0 GiB instead of 16.0 GiB" in text
        for text in found.warnings
    )
    shorter = next(step for step in found.next_steps if "model.context_tokens" in step)
    tokens = int(shorter.split("model.context_tokens ")[1].split()[0].replace(",", ""))
    assert forecast("Llama 2 7B", described("24GiB", "64GiB"), context=tokens).verdict == "resident"


def test_the_memory_that_is_asked_for_is_enough() -> None:
    machine = described("24GiB", "64GiB")
    found = forecast("Llama 2 7B", machine, context=32768)
    step = next(step for step in found.next_steps if "more VRAM would hold everything" in step)
    more = float(step.split(" GiB")[0]) + 0.1  # it is rounded
    assert (
        forecast("Llama 2 7B", replace(machine, gpu_bytes=(int((24 + more) * GIB),)), context=32768).verdict
        == "resident"
    )


def test_auto_takes_the_disk_only_where_no_memory_holds_a_document() -> None:
    machine = with_disk(described("24GiB", "16GiB"))
    on_disk = forecast("Llama 2 7B", machine, context=32768, rows=1)
    assert (on_disk.verdict, on_disk.cache_place) == ("cache offloaded", "disk")
    assert on_disk.disk_peak_bytes == 16 * GIB
    assert on_disk.vram_peak_bytes <= 24 * GIB
    assert on_disk.transfer_bytes >= 16 * GIB
    assert "very slow" in words(on_disk)
    assert on_disk.batch_tokens >= 32768
    assert forecast("Llama 2 7B", with_disk(described("24GiB", "64GiB")), context=32768).cache_place == "ram"
    assert forecast("Llama 2 7B", with_disk(machine, 10 * 10**9), context=32768).verdict == "does not fit"


def test_short_documents_are_not_slowed_by_what_longer_ones_would_need() -> None:
    found = forecast("Llama 2 7B", with_disk(described("24GiB", "16GiB")), context=32768, longest_tokens=4000)
    assert (found.verdict, found.cache_place) == ("resident", "device")
    assert found.context_tokens == 32768


def test_the_disk_holds_what_grows_and_memory_a_layer_at_a_time() -> None:
    shape = known_shape("Gemma 2 9B")
    found = forecast(
        "Gemma 2 9B",
        with_disk(described(ram="64GiB")),
        context=8192,
        rows=1,
        stored_dtype="float16",
        cache_place="disk",
    )
    assert (found.verdict, found.cache_place) == ("cache offloaded", "disk")
    assert found.disk_peak_bytes == shape.far_bytes(8192, "float16")
    assert 0 < shape.far_bytes(8192, "float16") < shape.kv_bytes(8192, "float16")
    in_memory = forecast(
        "Gemma 2 9B", with_disk(described(ram="64GiB")), context=8192, rows=1, stored_dtype="float16"
    )
    saved = in_memory.ram_peak_bytes - found.ram_peak_bytes
    assert saved == shape.kv_bytes(8192, "float16") - shape.near_bytes(8192, "float16")
    assert found.step is not None
    assert found.step.transfer_seconds > 0
    assert any("placement auto" in step for step in found.next_steps)


def test_a_cache_in_eight_bits_takes_half_and_only_if_asked_for() -> None:
    machine = described("24GiB", "16GiB")
    plain = forecast("Llama 2 7B", machine, context=20000)
    packed = forecast("Llama 2 7B", machine, context=20000, cache_place="device", cache_dtype="float8")
    assert plain.verdict != "resident"
    assert any("kv_cache.placement quantized" in step for step in plain.next_steps)
    assert (packed.verdict, packed.cache_place) == ("resident", "device")
    assert "in 8 bits, as configured" in words(packed)
    small = [
        forecast("Llama 2 7B", described("80GiB", "64GiB"), rows=4, cache_dtype=kind).cache_bytes
        for kind in (None, "float8")
    ]
    assert small[0] == 2 * small[1]


def test_a_gqa_model_is_not_blamed() -> None:
    found = forecast("Llama 3 8B", described("19GiB", "64GiB"), context=32768)
    assert found.verdict == "cache offloaded"
    assert not any("MHA" in text for text in found.warnings)


def test_without_a_card_everything_is_in_ram() -> None:
    found = forecast("Llama 2 7B", described(ram="32GiB", cores=2), "nf4")
    assert found.verdict == "resident"
    assert found.vram_peak_bytes == 0
    assert found.ram_peak_bytes > 3 * GIB
    assert "vLLM" not in words(found)


def test_two_cards_are_one() -> None:
    assert forecast("Llama 2 13B", described("16GiB", "64GiB")).verdict != "resident"
    found = forecast("Llama 2 13B", described("2x16GiB,8GiB", "64GiB"))
    assert found.verdict == "resident"
    assert "on the 3 graphics cards" in words(found)


def test_one_configuration_three_machines() -> None:
    found = {
        name: forecast("Llama 3 8B", with_disk(machine), "nf4")
        for name, machine in (
            ("8 GB", described("8GiB", "32GiB")),
            ("24 GB", described("24GiB", "64GiB")),
            ("none", described(ram="16GiB")),
        )
    }
    assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(found, "resident")
    assert found["8 GB"].rows < found["24 GB"].rows
    assert all(len(one.reasons) >= 3 for one in found.values())


def test_the_deadline_is_compared() -> None:
    loads = (load_of([1000, 3000] * 20, 5000, 96),)
    slow = forecast("Llama 3 8B", described("24GiB", "64GiB"), loads=loads, deadline_seconds=60)
    assert "too long for the deadline" in words(slow)
    assert "before the deadline" in words(
        forecast("Llama 3 8B", described("24GiB", "64GiB"), loads=loads, deadline_seconds=10**7)
    )


def test_without_rates_memory_is_planned_all_the_same() -> None:
    found = forecast("Llama 3 8B", replace(described("24GiB", "64GiB"), rates=Rates()))
    assert found.verdict == "resident"
    assert found.step is None
    assert found.load_seconds is None


def test_a_family_that_bitsandbytes_passes_over_is_named() -> None:
    found = forecast("Falcon 7B", described("24GiB", "64GiB"), "nf4", 2048)
    assert any("shrinks nothing of this family" in text for text in found.warnings)


@given(
    st.sampled_from(
        ["Llama 2 7B", "Llama 3 8B", "Mixtral 8x7B", "Gemma 2 9B", "DeepSeek V2 Lite", "Mamba 2.8B"]
    ),
    st.sampled_from(["none", "int8", "nf4"]),
    st.integers(4, 100),
    st.integers(0, 64),
    st.integers(512, 32768),
)
def test_more_memory_never_makes_it_worse(
    name: str, quantization: str, vram: int, more: int, context: int
) -> None:
    small = forecast(name, with_disk(described(f"{vram}GiB", "32GiB")), quantization, context)
    large = forecast(name, with_disk(described(f"{vram + more}GiB", "32GiB")), quantization, context)
    assert ORDER.index(large.verdict) >= ORDER.index(small.verdict)
    if small.verdict == large.verdict == "resident":
        assert large.rows >= small.rows


@given(
    st.sampled_from(VARIED),
    st.sampled_from(["none", "nf4"]),
    st.integers(2, 100),
    st.integers(512, 8192),
)
def test_what_is_promised_to_fit_is_within_the_memory(
    name: str, quantization: str, vram: int, context: int
) -> None:
    machine = with_disk(described(f"{vram}GiB", "64GiB"))
    found = forecast(name, machine, quantization, context)
    if found.fits:
        assert found.vram_peak_bytes <= vram * GIB
        assert found.ram_peak_bytes - found.ram_mapped_bytes <= 64 * GIB
        assert found.rows >= 1
    else:
        assert found.next_steps


@pytest.mark.parametrize("name", ["Llama 2 7B", "Jamba 52B", "DeepSeek V3"])
def test_every_sentence_is_readable(name: str) -> None:
    for line in describe(forecast(name, with_disk(described("24GiB", "64GiB")))):
        assert "None" not in line
        assert "  " not in line
        assert len(line) < 400
