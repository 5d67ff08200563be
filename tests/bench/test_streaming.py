"""1.1 billion parameters in a cgroup of 1.5 GB, cold caches: streamed in 4 bits against the library's disk offload, in one run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.numbers4 import unpacking_rate
from pipeline.planner.decide import Forecast, Wish, decide
from pipeline.planner.described import described
from pipeline.planner.measure import measured_rates
from pipeline.planner.shape import model_shape
from tests.engine.streaming.large_model import PROMPT_TOKENS, SHAPE, write_model
from tests.memory_limits import memory_group

pytestmark = [pytest.mark.bench, pytest.mark.timeout(7200)]
_LIMIT_BYTES, _MIB = 1500 * 2**20, 2**20
_STREAMED, _OFFLOADED = "tests.engine.streaming.large_model", "tests.bench.offloaded"


def tokens_per_second(home: Path, rows: int, module: str, *arguments: str) -> float:
    """Of decoding, by the median of its passes, in a cgroup of its own."""
    command = [sys.executable, "-m", module, str(home / "model"), str(home / "result"), *arguments]
    environment = {**os.environ, "OVERNIGHT_CACHE": str(home / "cache"), "MALLOC_ARENA_MAX": "2"}
    with memory_group() as group:
        process = group.start(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        group.drop_page_cache()
        group.limit(_LIMIT_BYTES)
        _, said = process.communicate("go\n")
        assert process.returncode == 0, said[-2000:]
    facts: dict[str, Any] = json.loads((home / "result").read_text())
    speed = rows / statistics.median(facts["sweep_seconds"][1:] or facts["sweep_seconds"])
    print(f"{module} {arguments}: {speed:.2f} tokens/s, passes {facts['sweep_seconds']}", flush=True)
    return speed


def forecast(home: Path, rows: int) -> Forecast:
    """What the planner expects of this machine, measured now, with the cgroup's memory."""
    rates = measured_rates(home / "rates", home, again=True, unpacking=unpacking_rate)
    machine = replace(described(ram=f"{_LIMIT_BYTES // _MIB}MiB", disk="nvme:1000GB"), rates=rates)
    return decide(model_shape(SHAPE), machine, Wish("nf4", "float32", 2048, rows=rows, longest_tokens=PROMPT_TOKENS + 8))


def test_against_the_library_s_disk_offload(tmp_path: Path) -> None:
    given = os.environ.get("OVERNIGHT_LARGE_HOME")  # a folder kept from an earlier run
    home = Path(given) if given else tmp_path
    if not (home / "model").exists():
        write_model(home / "model")
    planned = {rows: forecast(home, rows) for rows in (1, 128)}
    one = tokens_per_second(home, 1, _STREAMED, str(700 * _MIB), "1", "5")
    many = tokens_per_second(home, 128, _STREAMED, str(400 * _MIB), "128", "4")
    bounds = {rows: found.rows / found.step.seconds for rows, found in planned.items() if found.step is not None}
    print(f"of the planner's bound: {one / bounds[1]:.2f} (batch 1), {many / bounds[128]:.2f} (batch 128); {planned[128].reasons[-1]}")
    offloaded = tokens_per_second(home, 1, _OFFLOADED, "float32", str(500 * _MIB), "1", "4")
    offloaded_many = tokens_per_second(home, 128, _OFFLOADED, "float32", str(300 * _MIB), "128", "3")
    half = tokens_per_second(home, 1, _OFFLOADED, "bfloat16", str(500 * _MIB), "1", "3")
    print(f"batch 1: {one / offloaded:.2f} x float32, {one / half:.2f} x bfloat16")
    print(f"batch 128: {many / offloaded_many:.2f} x float32, {many / one:.1f} x batch 1")
    assert one >= 2 * offloaded
    assert many >= 12 * one
    assert many >= 3 * offloaded_many
    assert many >= 0.6 * bounds[128]
