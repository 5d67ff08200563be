"""Among 60 documents one segfaults the worker, one hangs it, one eats all memory, one raises: 56 are done, 4
recorded, the run ends.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.memory_limits import memory_group
from tests.nights import TASKS, ANight, documents, no_process_left

BAD = {
    "crash": ("SEGFAULTS", "quarantined"),
    "hang": ("HANGS", "quarantined"),
    "eater": ("EATS", "quarantined"),
    "odd": ("RAISES", "failed"),
}
FAULTS = {"SEGFAULTS": "segfault", "HANGS": "hang", "EATS": "eat", "RAISES": "raise"}
MOST_BYTES = 1500 << 20  # the plan wants room for a worker and its model


def a_night(folder: Path, **run: object) -> ANight:
    rows = documents(56, longest=6)
    for number, (name, (word, _)) in enumerate(BAD.items()):
        rows.insert(7 + 13 * number, {"id": name, "text": f"A document that {word}."})
    return ANight(
        folder,
        rows,
        tasks=TASKS[:1],
        script={"faults": [{"text": word, "do": do} for word, do in FAULTS.items()]},
        extra={
            "engine": {"batch_rows": 4, "stall_seconds": 30},
            "run": {"directory": str(folder / "run"), "max_attempts": 2, "keep_free_memory": 0, **run},
        },
    )


def in_a_group(night: ANight, *arguments: str) -> tuple[int, str]:
    """The command line with at most MOST_BYTES for it and its worker together; exit code and standard
    error.
    """
    with memory_group() as group:
        group.limit(MOST_BYTES)
        command = [sys.executable, "-P", "-m", "pipeline.cli.main", *arguments]
        process = group.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=night.environment)
        _, err = process.communicate(timeout=280)
        return process.returncode, err


def check(night: ANight, eaters_end: str) -> None:
    rows = {str(row["id"]): row for row in night.export()}
    assert len(rows) == 60
    assert sum(row["topic_status"] == "done" for row in rows.values()) == 56
    for name, (_, state) in BAD.items():
        assert rows[name]["topic_status"] == state
        error = str(rows[name]["topic_error"])
        told = shlex.split(error[error.index("overnight reproduce ") :])
        assert told[1:] == ["reproduce", str(night.directory), name]
    assert "SIGSEGV" in rows["crash"]["topic_error"]
    assert "no progress" in rows["hang"]["topic_error"]
    assert eaters_end in rows["eater"]["topic_error"]
    assert "model_error" in rows["odd"]["topic_error"]
    report = json.loads((night.directory / "report.json").read_text())
    assert report["runs"][-1]["exit_code"] == 3
    assert {failure["id"] for failure in report["tasks"]["topic"]["failures"]["first"]} == set(BAD)
    assert no_process_left(night.folder)


@pytest.mark.full
@pytest.mark.timeout(400)
def test_fifty_six_of_sixty(tmp_path: Path) -> None:
    night = a_night(tmp_path)
    code, err = in_a_group(night, "run", str(night.config))
    assert code == 3, err
    assert "Traceback" not in err
    check(night, "SIGKILL; most likely the system ran out of memory")


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_worker_gives_its_memory_back_before_the_kernel_takes_it(tmp_path: Path) -> None:
    night = a_night(tmp_path, keep_free_memory="200MiB")
    code, err = in_a_group(night, "run", str(night.config))
    assert code == 3, err
    log = (night.directory / "overnight.log").read_text()
    assert "less than run.keep_free_memory = 200 MiB: the worker was stopped" in log
    check(night, "out of memory" if "SIGKILL" in log else "less than run.keep_free_memory")
