"""Cards that fail or vanish in the middle of a night, and what a night holds of them: the runner nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.nights import TASKS
from tests.pretend_card.nights import CardNight, a_night


def states(night: CardNight) -> dict[str, int]:
    with closing(sqlite3.connect(night.directory / "ledger.sqlite")) as connection:
        return dict(connection.execute("SELECT state || crashes, count(*) FROM work GROUP BY 1").fetchall())


def test_only_the_worker_has_a_context(tmp_path: Path) -> None:
    night = a_night(tmp_path, 2, tasks=TASKS[1:])
    done = night.run()
    assert done.returncode == 0, done.stdout + done.stderr
    (runner,) = night.processes("main")
    (worker,) = night.processes("worker_main")
    assert worker["initialized"]
    assert worker["counts"]["launches"] > 0
    assert not runner["initialized"]


@pytest.mark.parametrize(
    "launches",
    [pytest.param(40, id="while it loads", marks=pytest.mark.full), pytest.param(4000, id="at work")],
)
def test_a_lost_card_stops_the_night_and_blames_nobody(tmp_path: Path, launches: int) -> None:
    night = a_night(tmp_path, 4, tasks=TASKS[1:], pretend={"FAIL": f"after={launches},kind=lost"})
    done = night.run()
    assert done.returncode == 75, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "Pretend card failed: CUDA error: an illegal memory access" in said
    assert states(night) == {"pending0": 4}


@pytest.mark.full
def test_a_vanished_card_is_not_replaced_by_the_processor(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    night = a_night(tmp_path, 4, tasks=TASKS[1:], pretend={"FAIL": f"after=4000,kind=gone,mark={gone}"})
    done = night.run()
    assert done.returncode == 75, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "the graphics card Pretend card is what the plan counts on, and none can be used any more" in said
    assert states(night) == {"pending0": 4}
