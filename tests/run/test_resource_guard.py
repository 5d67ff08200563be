from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.cli.doctor import examine
from pipeline.errors import StoppedEarly
from pipeline.run.resource_guard import Activity, ResourceGuard
from tests.nights import ANight, documents

FLOOR = 1 << 20


def watch(tmp_path: Path, free_bytes: int) -> ResourceGuard:
    return ResourceGuard(
        tmp_path, disk_floor_bytes=0, memory_floor_bytes=FLOOR, free_memory_bytes=lambda: free_bytes
    )


@pytest.mark.parametrize("activity", ["nothing", "loading", "idle", "computing"])
def test_enough_is_enough(tmp_path: Path, activity: Activity) -> None:
    assert watch(tmp_path, FLOOR).check(activity) is None


def test_a_worker_that_computes_gives_its_memory_back_first(tmp_path: Path) -> None:
    short = watch(tmp_path, FLOOR - 1)
    assert short.check("loading") is None
    short = watch(tmp_path, FLOOR - 1)
    why = short.check("computing")
    assert why is not None
    assert why.startswith("1,024 KiB of memory are free, less than run.keep_free_memory = 1 MiB")
    with pytest.raises(StoppedEarly, match="close other programs"):  # looked at again at once
        short.check("nothing")


def test_memory_that_others_take_ends_the_run(tmp_path: Path) -> None:
    for activity, words in (("nothing", "without a model in it"), ("idle", "with the model loaded")):
        with pytest.raises(StoppedEarly, match=words):
            watch(tmp_path, 0).check(activity)  # type: ignore[arg-type]  # two of its words


def test_looks_are_a_second_apart(tmp_path: Path) -> None:
    looks = []
    seen = ResourceGuard(
        tmp_path,
        disk_floor_bytes=0,
        memory_floor_bytes=FLOOR,
        free_memory_bytes=lambda: looks.append(1) or FLOOR,
    )  # type: ignore[func-returns-value]
    for _ in range(100):
        seen.check("computing")
    assert len(looks) == 1


def test_the_doctor_looks_at_the_floor(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(2))
    for floor, level in (("0", {"ok", "warn"}), ("9999TB", {"stop"})):
        (found,) = [
            finding
            for finding in examine(night.config, [f"run.keep_free_disk={floor}"]).findings
            if finding.name == "disk"
        ]
        assert found.level in level
    assert "run.keep_free_disk" in found.sentence


def test_a_disk_below_its_floor_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(StoppedEarly, match=r"less than run\.keep_free_disk"):
        ResourceGuard(tmp_path, disk_floor_bytes=1 << 60, memory_floor_bytes=0).check("computing")
    ResourceGuard(tmp_path, disk_floor_bytes=0, memory_floor_bytes=0).check("computing")
