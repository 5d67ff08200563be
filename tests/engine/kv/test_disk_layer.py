"""Keys and values on disk while a document is read and continued: in less memory than they take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.in_little_memory import PLAN
from tests.memory_limits import MemoryGroup, memory_group, was_out_of_memory

TOKENS, NEW_TOKENS = 7_000, 6
CACHE_BYTES = TOKENS * PLAN.kv_bytes_per_token
ALLOWED_BYTES = CACHE_BYTES // 4

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]


def started(group: MemoryGroup, folder: Path, model: Path, placement: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "tests.engine.in_little_memory",
        str(folder),
        str(model),
        placement,
        str(TOKENS),
        str(NEW_TOKENS),
    ]
    process = group.start(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["loaded"]
    return process


def answered(process: subprocess.Popen[str]) -> list[int] | None:
    """The tokens, None where the kernel killed it."""
    out, _ = process.communicate("go\n", timeout=1500)
    if was_out_of_memory(process.returncode):
        return None
    assert process.returncode == 0
    return [int(token) for token in json.loads(out)["tokens"]]


def test_a_cache_of_four_times_the_memory(tmp_path: Path, demo_model_folder: Path) -> None:
    with memory_group() as free:
        expected = answered(started(free, tmp_path, demo_model_folder, "device"))
    found = {}
    for placement in ("disk", "device"):
        with memory_group() as group:
            process = started(group, tmp_path, demo_model_folder, placement)
            group.drop_page_cache()
            footprint = group.usage_bytes()
            group.limit(footprint + ALLOWED_BYTES)
            found[placement] = answered(process)
            print(
                f"{placement}: {footprint / 2**20:.0f} MiB loaded, "
                f"{(group.peak_bytes() - footprint) / 2**20:.0f} MiB more at most"
            )
    assert found["device"] is None  # or the limit says nothing
    assert found["disk"] == expected
