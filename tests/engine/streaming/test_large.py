"""1.1 billion parameters within an allowance: in a cgroup that counts the page cache, with cold caches, as
resident, and what it costs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.streaming.large_model import PROMPT_TOKENS, write_model
from tests.memory_limits import MemoryGroup, memory_group

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]
_MIB = 2**20
_NEW_TOKENS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Runs the large model in a process of its own: (allowed bytes of weights, rows, limit of the cgroup) to
    facts.
    """
    home = tmp_path_factory.mktemp("large")
    model = write_model(home / "model")

    def started(
        allowed: int, rows: int, group: MemoryGroup | None = None, limit_bytes: int = 0
    ) -> dict[str, Any]:
        command = [
            sys.executable,
            "-m",
            "tests.engine.streaming.large_model",
            str(model),
            str(home / "result"),
            str(allowed),
            str(rows),
        ]
        command.append(str(_NEW_TOKENS))
        environment = {**os.environ, "OVERNIGHT_CACHE": str(home / "cache"), "MALLOC_ARENA_MAX": "2"}
        options: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment}
        process = (
            subprocess.Popen(command, text=True, **options)
            if group is None
            else group.start(command, **options)
        )
        if group is not None:
            group.limit(limit_bytes)
        _, said = process.communicate("go\n")
        assert process.returncode == 0, said[-2000:]
        facts: dict[str, Any] = json.loads((home / "result").read_text())
        return facts

    return started


def test_preparing_holds_no_more_than_the_largest_shard(run: Callable[..., dict[str, Any]]) -> None:
    facts = run(0, 1)
    assert facts["preparing_seconds"] > 1
    assert facts["peak_load_bytes"] - facts["bare_bytes"] <= 1.2 * 32_000 * 2048 * 4


def test_in_little_memory_as_with_all_of_it(run: Callable[..., dict[str, Any]]) -> None:
    resident = run(8 * 2**30, 2)
    assert resident["sweep_bytes"] == 0
    with memory_group() as group:
        tight = run(700 * _MIB, 2, group, 1500 * _MIB)
        assert group.peak_bytes() <= 1500 * _MIB
    assert tight["tokens"] == resident["tokens"]
    assert tight["read_bytes"] == pytest.approx(tight["sweeps"] * tight["sweep_bytes"], rel=0.03)
    assert tight["dequantized"] == tight["all_sweeps"]


def test_every_layer_from_disk_whatever_the_batch(run: Callable[..., dict[str, Any]]) -> None:
    one, many = run(0, 1), run(0, 64)
    for rows, facts in ((1, one), (64, many)):
        # prompts are read in passes of 512 tokens
        assert facts["sweeps"] == _NEW_TOKENS - 1 + -(-rows * PROMPT_TOKENS // 512)
        assert facts["read_bytes"] == pytest.approx(facts["sweeps"] * facts["sweep_bytes"], rel=0.03)
        assert facts["dequantized"] == facts["all_sweeps"]


def test_a_quarter_of_its_weights_above_the_process_itself(run: Callable[..., dict[str, Any]]) -> None:
    allowed = 155 * _MIB
    footprint = run(100 * _MIB, 1)["bare_bytes"]
    with memory_group() as group:
        facts = run(100 * _MIB, 1, group, footprint + allowed)
    assert facts["grain"] == "module"
    assert facts["read_bytes"] == pytest.approx(facts["sweeps"] * facts["sweep_bytes"], rel=0.03)
