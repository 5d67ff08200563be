"""When to stop: the first reason stays, signals in the main thread, the next time the clock shows the
deadline.
"""

from __future__ import annotations

import datetime
import os
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import StoppedEarly
from pipeline.system.stop_signal import StopSignal, seconds_until


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


@given(st.datetimes(), st.integers(0, 23), st.integers(0, 59))
def test_the_deadline_is_within_a_day_and_on_the_minute(
    now: datetime.datetime, hour: int, minute: int
) -> None:
    seconds = seconds_until(f"{hour}:{minute:02}", now)
    assert 0 < seconds <= 86400
    then = now + datetime.timedelta(seconds=seconds)
    assert (then.hour, then.minute, then.second) == (hour, minute, 0)


def test_a_deadline_asks_to_stop() -> None:
    stop = StopSignal()
    soon = datetime.datetime.now() + datetime.timedelta(minutes=2)
    with stop.watch_deadline(soon.strftime("%H:%M")):
        stop.check()
    with stop.watch_deadline(None):
        pass
    assert threading.active_count() >= 1
