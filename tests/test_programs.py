"""A program that is forked instead of started is one like any other: its session, streams, exit code, worker
and death, and what it prints is what a fresh one prints.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.nights import TASKS, ANight, documents, no_process_left
from tests.programs import FRESH
from tests.tiers import quick


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> ANight:
    """A finished night, forked: nothing in it may differ from a fresh one's."""
    finished = ANight(tmp_path_factory.mktemp("night"), documents(4, longest=4), TASKS[:1])
    done = finished.run()
    assert done.returncode == 0, done.stderr
    return finished


@pytest.mark.parametrize(
    "arguments",
    quick(
        [("--help",), ("status", "{run}"), ("status", "{folder}"), ("export", "{run}")],
        ("status", "{folder}"),
        ("export", "{run}"),
    ),
    ids=" ".join,
)
def test_forked_and_fresh_print_the_same(
    night: ANight, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word.format(run=night.directory, folder=night.folder) for word in arguments]
    forked = night.command(*words)
    monkeypatch.setenv(FRESH, "1")
    fresh = night.command(*words)
    assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


@pytest.mark.full
def test_a_fresh_night_ends_like_a_forked_one(
    night: ANight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = night.export()
    monkeypatch.setenv(FRESH, "1")
    fresh = ANight(tmp_path, night.rows, TASKS[:1])
    done = fresh.run()
    assert done.returncode == 0, done.stderr
    assert fresh.export() == forked
    assert "Fatal" not in (fresh.directory / "worker.log").read_text(encoding="utf-8")


def test_it_has_a_session_and_a_worker_of_its_own_and_dies_when_it_is_killed(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(4), TASKS[:1], script={"load_seconds": 60})
    process = night.start("run", str(night.config))
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        assert os.getsid(process.pid) == process.pid
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert no_process_left(tmp_path)
