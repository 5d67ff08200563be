"""The time left: by the plan at first, by what was measured soon, each task at its own price; loading a model
is no part of it.
"""

from __future__ import annotations

import pytest

from pipeline.tasks import throughput_meter
from pipeline.tasks.throughput_meter import TaskSize, ThroughputMeter


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(throughput_meter.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_without_a_plan_it_is_what_was_measured(clock: Clock) -> None:
    meter = ThroughputMeter({"a": TaskSize(1000)})
    meter.start()
    assert (meter.planned_seconds, meter.eta_seconds, meter.share) == (None, None, 0)
    clock.now += 10
    meter.read("a", 100, 50)
    assert meter.eta_seconds == pytest.approx(90)
    assert meter.tokens_per_second == pytest.approx(5)
    assert meter.share == pytest.approx(0.1)


def test_the_plan_speaks_first_and_what_is_measured_later(clock: Clock) -> None:
    """Everything takes three times what was planned."""
    meter = ThroughputMeter({"a": TaskSize(36_000, 3600.0)})
    meter.start()
    assert meter.planned_seconds == meter.eta_seconds == pytest.approx(3600)
    expected = []
    for _ in range(100):
        clock.now += 30
        meter.read("a", 100, 1)  # ten seconds of the plan
        assert meter.eta_seconds is not None
        expected.append(meter.worked_seconds + meter.eta_seconds)
    assert expected == sorted(expected)
    assert 3600 < expected[0] < 1.5 * 3600
    assert expected[11] > 2 * 3600  # after six minutes
    assert expected[-1] == pytest.approx(3 * 3600, rel=0.1)


def test_each_task_has_its_own_price(clock: Clock) -> None:
    """Labels come first and take a tenth of the time of summaries: the pace of labels promises nothing."""
    meter = ThroughputMeter({"label": TaskSize(1000, 100.0), "summary": TaskSize(1000, 1000.0)})
    meter.start()
    clock.now += 100
    meter.read("label", 1000, 1)
    assert meter.eta_seconds == pytest.approx(1000)
    assert meter.share == pytest.approx(100 / 1100)
    meter.skipped("summary", 500)
    assert meter.eta_seconds == pytest.approx(500)


def test_a_plan_of_some_tasks_only_is_none(clock: Clock) -> None:
    meter = ThroughputMeter({"a": TaskSize(10, 5.0), "b": TaskSize(10)})
    assert meter.planned_seconds is None


def test_loading_is_no_part_of_the_pace(clock: Clock) -> None:
    meter = ThroughputMeter({"a": TaskSize(100)})
    clock.now += 500  # libraries, and the first load
    meter.start()
    clock.now += 10
    meter.read("a", 50, 20)
    meter.pause()  # a worker died, and its model is loaded again
    clock.now += 300
    assert meter.tokens_per_second == pytest.approx(2)
    assert meter.eta_seconds == pytest.approx(10)
    meter.start()
    clock.now += 10
    meter.read("a", 25, 20)
    assert meter.worked_seconds == pytest.approx(20)
    assert meter.tokens_per_second == pytest.approx(2)
