"""What a run tells of its work: the plan is set right once by the first minutes, and everybody is told."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.cli.progress import facts, where
from pipeline.records import Outcome, Progress
from pipeline.run.progress import WorkProgress
from pipeline.tasks import throughput_meter
from pipeline.tasks.throughput_meter import TaskSize, ThroughputMeter


def test_the_first_minutes_set_the_plan_right_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 50.0}
    monkeypatch.setattr(throughput_meter.time, "monotonic", lambda: clock["now"])
    told: list[Progress] = []
    noted: list[dict[str, Any]] = []
    pace = ThroughputMeter({"t": TaskSize(3600, 3600.0)})
    progress = WorkProgress(told.append, 10, pace, lambda **known: noted.append(known))
    progress.loaded()
    assert told[-1].eta_seconds == told[-1].planned_seconds == pytest.approx(3600)  # the plan's word, at once
    for _ in range(8):
        clock["now"] += 60
        pace.read("t", 20, 5)
        progress.recorded([Outcome("t", "k", "done")])
        progress.show()
    words = [one.message for one in told if one.message]
    assert words == ["by the pace of its first 2 min the work takes 1 h 49 min; the plan said 60 min"]
    assert [list(one) for one in noted] == [["pace"]]
    assert noted[0]["pace"]["after_seconds"] == pytest.approx(120)
    assert told[-1].expected_seconds is not None
    assert told[-1].expected_seconds > 2 * 3600
    assert told[-1].done == 8


def test_without_a_plan_there_is_nothing_to_set_right(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 50.0}
    monkeypatch.setattr(throughput_meter.time, "monotonic", lambda: clock["now"])
    told: list[Progress] = []
    progress = WorkProgress(
        told.append, 10, ThroughputMeter({"t": TaskSize(3600)}), lambda **_: pytest.fail("noted")
    )
    progress.loaded()
    clock["now"] += 500
    progress.show()
    assert [one.message for one in told] == ["", ""]


def test_long_documents_show_before_they_are_done() -> None:
    early = Progress("working", done=0, total=4, share=0.31, eta_seconds=90.0)
    assert where(early) == "working 0/4 31% read, 90 s left"
    assert (early.behind, Progress("working", done=2, total=4).behind, Progress("reading").behind) == (
        0.31,
        0.5,
        0,
    )
    even = Progress("working", done=2, total=4, share=0.5)
    assert facts(even) == ""


def test_only_the_time_left_passes() -> None:
    then = Progress("working", done=1, total=4, eta_seconds=90.0)
    assert then.after(30).eta_seconds == 60
    assert then.after(300).eta_seconds == 0
    assert Progress("loading").after(5) == Progress("loading")
