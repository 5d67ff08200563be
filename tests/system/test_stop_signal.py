"""When to stop: the first reason stays, signals in the main thread, the next time the clock shows the
deadline.
"""

from __future__ import annotations

import datetime
import os
import signal
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import StoppedEarly
from pipeline.system.stop_signal import Deadline, StopSignal, next_time, seconds_until

_FAR = datetime.datetime.fromisoformat("9000-01-01")


def test_the_first_reason_stays() -> None:
    stop = StopSignal()
    stop.check()
    stop.request("deadline 07:00")
    stop.request("signal SIGTERM")
    with pytest.raises(StoppedEarly, match=r"^deadline 07:00$"):
        stop.check()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_request_and_handlers_are_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    stop = StopSignal()
    with stop.watch_signals():
        os.kill(os.getpid(), number)
        with pytest.raises(StoppedEarly, match=f"^signal {number.name}$"):
            stop.check()
    assert signal.getsignal(number) is before


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    seen = []

    def watch() -> None:
        before = signal.getsignal(signal.SIGTERM)
        with StopSignal().watch_signals():
            seen.append(signal.getsignal(signal.SIGTERM) is before)

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert seen == [True]


@given(st.datetimes(max_value=_FAR), st.integers(0, 23), st.integers(0, 59))
def test_the_deadline_is_within_a_day_and_on_the_minute(
    now: datetime.datetime, hour: int, minute: int
) -> None:
    then = next_time(f"{hour}:{minute:02}", now)
    assert datetime.timedelta(0) < then - now <= datetime.timedelta(days=1)
    assert (then.hour, then.minute, then.second) == (hour, minute, 0)


def looks(text: str) -> list[datetime.datetime]:
    """Looks at a clock: ``day hour:minute:second``, of December 2026."""
    return [datetime.datetime.fromisoformat(f"2026-12-{look.strip()}") for look in text.split(",")]


@pytest.mark.parametrize(
    ("what", "clock", "before", "reached"),
    [
        ("a night", "07:00", "01 22:00:00, 02 06:59:59", "02 07:00:00"),
        ("the very minute is tomorrow's", "07:00", "01 07:00:00, 01 07:00:01, 02 06:59:59", "02 07:00:01"),
        ("an hour is left out", "02:30", "01 22:00:00, 02 01:59:59", "02 03:00:00"),
        ("an hour is left out before it", "06:00", "01 22:00:00, 02 01:59:59, 02 03:00:00", "02 06:00:00"),
        ("an hour comes twice", "06:00", "01 22:00:00, 02 02:59:59, 02 02:00:00, 02 05:59:59", "02 06:00:00"),
        ("begun in the first of two hours", "02:30", "01 02:45:00, 01 02:59:59, 01 02:00:00", "01 02:30:00"),
        ("a machine that slept", "07:00", "01 22:00:00, 01 22:00:01", "02 11:00:00"),
        ("a clock that was days ahead", "07:00", "20 22:00:00, 01 22:00:00, 02 06:59:00", "02 07:00:00"),
        ("a clock that was days behind", "07:00", "01 22:00:00", "20 06:00:00"),
        ("a clock that is made exact", "07:00", "01 07:00:00, 01 06:59:59, 01 07:00:00", "02 07:00:00"),
    ],
)
def test_a_deadline_is_a_time_of_day(what: str, clock: str, before: str, reached: str) -> None:
    first, *others = looks(before)
    deadline = Deadline(clock, first)
    assert [deadline.reached(look) for look in others] == [False] * len(others), what
    assert deadline.reached(looks(reached)[0]), what


def summer_time_from(moment: datetime.datetime) -> str:
    """A zone without an offset, whose clocks go forward by an hour at ``moment`` and back half a year
    later.
    """
    day = moment.timetuple().tm_yday - 1
    return f"AAA0BBB,{day}/{moment:%H:%M:%S},{(day + 180) % 365}/0"


def test_clocks_that_go_forward_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own clock, in a zone whose summer time begins in two seconds and leaves the deadline
    out.
    """
    utc = datetime.datetime.now(datetime.UTC)
    jump = utc + datetime.timedelta(seconds=2)
    monkeypatch.setenv("TZ", summer_time_from(jump))
    deadline = utc + datetime.timedelta(minutes=30)
    stop = StopSignal()
    try:
        with stop.watch_deadline(deadline.strftime("%H:%M")):
            stop.check()
            until = time.monotonic() + 30
            while stop._reason is None and time.monotonic() < until:
                time.sleep(0.1)
            with pytest.raises(StoppedEarly, match=r"^deadline "):
                stop.check()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_deadline_is_watched_only_as_long_as_the_run() -> None:
    before = threading.active_count()
    soon = datetime.datetime.now() + datetime.timedelta(minutes=2)
    stop = StopSignal()
    with stop.watch_deadline(soon.strftime("%H:%M")):
        stop.check()
        assert threading.active_count() == before + 1
    with stop.watch_deadline(None):
        assert threading.active_count() <= before + 1
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.05)
    assert threading.active_count() == before


def test_seconds_until_are_those_of_the_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks go forward in an hour and more, and so there is an hour less until the deadline."""
    utc = datetime.datetime.now(datetime.UTC)
    jump = utc + datetime.timedelta(hours=2)
    monkeypatch.setenv("TZ", summer_time_from(jump))
    try:
        left = seconds_until((utc + datetime.timedelta(hours=6)).strftime("%H:%M"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert left == pytest.approx(5 * 3600, abs=61)
