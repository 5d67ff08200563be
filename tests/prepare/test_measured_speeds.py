"""What a machine has shown of a model is kept, merged, told apart by model and numbers, and survives a
damaged file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import Config, parse_config
from pipeline.planner.roofline import Speed, decode_step, prefill_seconds
from pipeline.prepare.measured_speeds import MeasuredSpeeds, calibrated, measured_by, recall, remember
from pipeline.system.hardware_spec import described
from pipeline.system.machine_load import OthersLoad
from tests.planner.known_models import known_shape


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))


def config(quantization: str = "none", threads: int | None = None, backend: str = "auto") -> Config:
    return parse_config(
        {
            "model": {"id": "m", "quantization": quantization},
            "source": {"path": "a"},
            "engine": {"threads": threads, "backend": backend},
            "tasks": [{"name": "s", "kind": "summarize"}],
            "run": {"directory": "r"},
        }
    )


def test_what_was_seen_is_merged_and_told_apart() -> None:
    assert recall(config(), "float32") == MeasuredSpeeds()
    remember(config(), "float32", load_seconds=2.5, output_tokens={"a": 40.0})
    remember(
        config(), "float32", prefill_tokens_per_second=300.0, prefill_at_tokens=400, output_tokens={"b": 60.0}
    )
    kept = recall(config(), "float32")
    assert (kept.load_seconds, kept.prefill_tokens_per_second, dict(kept.output_tokens)) == (
        2.5,
        300.0,
        {"a": 40.0, "b": 60.0},
    )
    assert kept.measured
    for other in (
        recall(config("nf4"), "float32"),
        recall(config(), "bfloat16"),
        recall(config(threads=1), "float32"),
        recall(config(backend="another"), "float32"),
    ):
        assert other == MeasuredSpeeds()
    assert recall(config(backend="transformers"), "float32") == kept


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"format": 1, "load_seconds": -1}', '{"format": 1, "speed": 3}', '{"format": 9}'],
)
def test_a_file_that_is_not_ours_is_none(tmp_path: Path, content: str) -> None:
    remember(config(), "float32", load_seconds=2.5)
    (path,) = (tmp_path / "cache" / "speeds").iterdir()
    path.write_text(content)
    assert recall(config(), "float32") == MeasuredSpeeds()
    remember(config(), "float32", load_seconds=3.5)
    assert recall(config(), "float32").load_seconds == 3.5


def test_the_plan_obeys_what_was_measured() -> None:
    demo = known_shape("SmolLM2 135M")
    seen = MeasuredSpeeds(
        prefill_tokens_per_second=400.0,
        prefill_at_tokens=512,
        decode_tokens_per_second=120.0,
        decode_at_rows=16,
        decode_at_tokens=500,
    )
    machine = calibrated(described(ram="16GiB"), seen)
    assert machine.rates.origin == "measured with this model"
    speed = Speed(machine.rates)
    assert prefill_seconds(demo, 512, speed) == pytest.approx(512 / 400)
    assert prefill_seconds(demo, 2048, speed) > 4 * 512 / 400  # attention grows faster than the text
    step = decode_step(demo, speed, quantization="none", dtype="float32", rows=16, tokens=500)
    assert 16 / step.seconds == pytest.approx(120)
    fewer = decode_step(demo, speed, quantization="none", dtype="float32", rows=1, tokens=500)
    assert fewer.seconds <= step.seconds


def test_what_speeds_rest_on_is_said() -> None:
    class Busy(OthersLoad):
        busy_cores = 1.5

    remember(
        config(),
        "float32",
        prefill_tokens_per_second=300.0,
        prefill_at_tokens=400,
        origin=measured_by("overnight bench", Busy()),
    )
    found = calibrated(described(ram="8GiB"), recall(config(), "float32")).rates
    assert found.origin.startswith("measured with this model by overnight bench, 20")
    assert ", while other programs used 1.5 of " in found.origin
    assert found.prefill_tokens_per_second == 300
    without = calibrated(described(ram="8GiB"), MeasuredSpeeds(prefill_tokens_per_second=300.0))
    assert without.rates.origin == "measured with this model"  # kept by an earlier version
