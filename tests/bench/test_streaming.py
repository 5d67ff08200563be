"""1.1 billion parameters in a cgroup of 1.5 GB, cold caches: streamed in 4 bits against the library's disk
offload, in one run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.model.nf4 import unpacking_rate
from pipeline.engine.streaming.weight_file import forget
from pipeline.planner.forecast import Forecast, Wish, decide
from pipeline.system.hardware_datasheet import SATA
from pipeline.system.hardware_rates import measured_rates
from pipeline.system.hardware_spec import described
from tests.engine.streaming.large_model import PROMPT_TOKENS, SHAPE, write_model
from tests.memory_limits import memory_group, was_out_of_memory
from tests.planner.known_models import shape_of

pytestmark = [pytest.mark.bench, pytest.mark.timeout(7200)]
_LIMIT_BYTES, _MIB = 1500 * 2**20, 2**20
_STREAMED, _OFFLOADED = "tests.engine.streaming.large_model", "tests.bench.offloaded"


@contextlib.contextmanager
def disk_of(home: Path, bytes_per_second: int) -> Iterator[Callable[[int], None]]:
    """Puts processes, by their number, where the disk of ``home`` reads no faster than this (a first-version
    cgroup).
    """
    group = Path("/sys/fs/cgroup/blkio") / f"overnight-bench-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        device = home.stat().st_dev
        (group / "blkio.throttle.read_bps_device").write_text(
            f"{os.major(device)}:{os.minor(device)} {bytes_per_second}"
        )
    except OSError as error:
        pytest.skip(f"no cgroup can slow a disk here: {error}")
    try:
        yield lambda process: (group / "cgroup.procs").write_text(str(process)) and None
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def tokens_per_second(
    home: Path,
    module: str,
    allowed: int,
    rows: int,
    *numbers: str,
    slow: Callable[[int], None] = lambda _: None,
) -> float:
    """Of decoding alone, by the median of its passes, in a cgroup of its own. ``numbers``: dtype, and tokens
    of each prompt.
    """
    new_tokens = 4
    order = [str(allowed * _MIB), str(rows), str(new_tokens), *numbers]
    command = [sys.executable, "-m", module, str(home / "model"), str(home / "result"), *order]
    environment = {**os.environ, "OVERNIGHT_CACHE": str(home / "cache"), "MALLOC_ARENA_MAX": "2"}
    with memory_group() as group:
        process = group.start(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        for file in (
            file for file in home.rglob("*") if file.is_file()
        ):  # what others have read counts for nobody's limit
            with file.open("rb") as held:
                forget(held.fileno())
        group.drop_page_cache()
        group.limit(_LIMIT_BYTES)
        slow(process.pid)
        _, said = process.communicate("go\n")
        if was_out_of_memory(process.returncode):
            print(
                f"{module.rpartition('.')[2]} {rows} rows {numbers}: killed, it needs more than "
                f"{_LIMIT_BYTES // _MIB} MiB",
                flush=True,
            )
            return 0.0
        assert process.returncode == 0, said[-2000:]
    facts: dict[str, Any] = json.loads((home / "result").read_text())
    decoding = facts["sweep_seconds"][1 - new_tokens :]
    speed = rows / statistics.median(decoding)
    print(
        f"{module.rpartition('.')[2]} {rows} rows {numbers}: {speed:.2f} tokens/s, passes {decoding}",
        flush=True,
    )
    return speed


def largest(of: Callable[..., float], module: str, sizes: tuple[int, ...], *numbers: str) -> float:
    """Tokens a second with the most rows that the cgroup holds, with as few weights in memory as each can do
    with.
    """
    allowed = 250 if module == _STREAMED else 300
    return next(speed for rows in sizes if (speed := of(module, allowed, rows, *numbers)))


def measured(home: Path, dtype: str, slow: Callable[[int], None] = lambda _: None) -> dict[str, float]:
    """Both at batch 1, streamed at 128, and each with the largest of a few batches that fits."""
    of = functools.partial(tokens_per_second, home, slow=slow)
    found = {
        "one": of(_STREAMED, 700, 1, dtype),
        "many": of(_STREAMED, 400, 128, dtype),
        "most": largest(of, _STREAMED, (512, 384, 256), dtype),
    }
    found |= {
        "their one": of(_OFFLOADED, 500, 1, dtype),
        "their most": largest(of, _OFFLOADED, (512, 384, 256, 192), dtype),
    }
    print(
        f"{dtype}: {found['one'] / found['their one']:.2f} x the library at batch 1, "
        f"{found['most'] / found['their most']:.2f} x with the "
        f"largest batches; streamed, 128 rows give {found['many'] / found['one']:.1f} x batch 1",
        flush=True,
    )
    return found


def forecast(home: Path, rows: int) -> Forecast:
    """What the planner expects of this machine, measured now, with the cgroup's memory."""
    rates = measured_rates(home / "rates", home, again=True, unpacking=unpacking_rate)
    machine = replace(described(ram=f"{_LIMIT_BYTES // _MIB}MiB", disk="nvme:1000GB"), rates=rates)
    return decide(
        shape_of(SHAPE), machine, Wish("nf4", "float32", 2048, rows=rows, longest_tokens=PROMPT_TOKENS + 8)
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    given = os.environ.get("OVERNIGHT_LARGE_HOME")  # a folder kept from an earlier run
    folder = Path(given) if given else tmp_path
    if not (folder / "model").exists():
        write_model(folder / "model")
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_against_the_library_s_disk_offload(home: Path, dtype: str) -> None:
    """Each at batch 1 and with its largest batch. In plain numbers and with many rows it is the processor
    that bounds both.
    """
    found = measured(home, dtype)
    if dtype == "float32":
        bounds = {
            rows: told.rows / told.step.seconds
            for rows in (1, 128)
            if (told := forecast(home, rows)).step is not None
        }
        print(
            f"of the planner's bound: {found['one'] / bounds[1]:.2f} at batch 1, "
            f"{found['many'] / bounds[128]:.2f} at 128"
        )
        assert found["many"] >= 0.6 * bounds[128]
    assert found["one"] >= 2 * found["their one"]
    assert found["many"] >= 12 * found["one"]


def test_with_documents_of_512_tokens(home: Path) -> None:
    """Caches as real documents have them decide how many rows share a sweep. The library was killed with 24
    such rows.
    """
    of, sizes, numbers = functools.partial(tokens_per_second, home), (24, 16, 8), ("float32", "512")
    ours, theirs = (largest(of, module, sizes, *numbers) for module in (_STREAMED, _OFFLOADED))
    print(f"{ours / theirs:.2f} x the library with the largest batches", flush=True)
    assert ours >= 3 * theirs


def test_on_a_disk_like_a_sata_drive(home: Path) -> None:
    with disk_of(home, int(SATA.read_bytes_per_second)) as slow:
        found = measured(home, "float32", slow)
        their_many = tokens_per_second(home, _OFFLOADED, 300, 128, "float32", slow=slow)
    assert found["one"] >= 2 * found["their one"]
    assert found["many"] >= 3 * their_many
    assert found["most"] >= 2 * found["their most"]
