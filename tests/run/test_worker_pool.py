"""Several workers behind one queue: each is leased its own requests, and a death loses only what it held."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DoesNotFit, OvernightError
from pipeline.records import Request
from pipeline.run.protocol import Loaded, Replies, Says
from pipeline.run.routing import assign
from pipeline.run.worker import Worker
from pipeline.run.worker_pool import Death, Event, LoadFailed, WorkerPool, added_up
from tests.run.workers import PLAN, asked, in_process, local_process, script

POISON = [{"text": "bad", "do": "no such fault"}]


def a_pool(folder: Path, size: int = 2) -> WorkerPool:
    return WorkerPool(lambda _, ring: in_process(folder, ring), folder, size)


def events_until(pool: WorkerPool, done: Callable[[list[Event]], bool], seconds: float = 60) -> list[Event]:
    events: list[Event] = []
    until = time.monotonic() + seconds
    while not done(events):
        assert time.monotonic() < until, f"the pool said only {events}"
        pool.load(PLAN)
        pool.admit([])
        events += pool.collect(0.05)
    return events


def replies(events: list[Event]) -> list[int]:
    return sorted(
        reply.request_id for event in events if isinstance(event, Replies) for reply in event.generations
    )


def deaths(events: list[Event]) -> list[Death]:
    return [event for event in events if isinstance(event, Death)]


def loaded(count: int) -> Callable[[list[Event]], bool]:
    return lambda events: sum(isinstance(event, Loaded) for event in events) == count


def ids(requests: tuple[Request, ...]) -> list[int]:
    return [request.request_id for request in requests]


def test_a_death_loses_only_what_that_worker_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, batch=1, faults=POISON)
    with a_pool(tmp_path) as pool:
        events_until(pool, loaded(2))
        pool.admit(asked("a", "b", "c", "bad", "e", "f", "g", "h"))  # in turn: the even ones to the second
        events = events_until(pool, lambda events: bool(deaths(events)) and len(replies(events)) == 5)
        (death,) = deaths(events)
        assert replies(events) == [1, 2, 3, 5, 7]  # all of the first, what the second had finished
        assert death.worker == 1
        assert ids(death.leased) == [4, 6, 8]
        assert death.started == {4}
        assert "KeyError" in death.reason
        pool.admit([request for request in death.leased if request.request_id not in death.started])
        again = events_until(pool, lambda events: len(replies(events)) == 2)
        assert replies(again) == [6, 8]  # by the other one, or by the one in the dead one's place
        assert not deaths(again)


def test_two_processes_die_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, batch=1, seconds=0.02, faults=[{"text": "bad", "do": "kill"}])

    def start(number: int, ring: Callable[[], None]) -> Worker:
        folder = tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        return local_process(folder, ring)

    with WorkerPool(start, tmp_path, 2) as pool:
        events_until(pool, loaded(2))
        pool.admit(asked("a", "b", "c", "bad", "e", "f"))
        events = events_until(pool, lambda events: bool(deaths(events)) and len(replies(events)) == 4)
    (death,) = deaths(events)
    assert (death.worker, ids(death.leased), death.started) == (1, [4, 6], {4})
    assert replies(events) == [1, 2, 3, 5]


def test_requests_wait_until_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch)
    with a_pool(tmp_path, 1) as pool:
        assert pool.activity == "nothing"
        pool.admit(asked("a", "b", "c"))
        pool.release([2])
        assert pool.collect(0) == []
        events = events_until(pool, lambda events: len(replies(events)) == 2)
        assert isinstance(events[0], Says)
        assert isinstance(events[1], Loaded)
        assert replies(events) == [1, 3]
        assert pool.activity == "idle"


def test_a_worker_is_sacrificed_for_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, batch=1, seconds=0.3)
    with WorkerPool(lambda _, ring: local_process(tmp_path, ring), tmp_path) as pool:
        events_until(pool, loaded(1))
        pool.sacrifice("memory is short")  # nobody computes: nobody has anything to give
        assert deaths(pool.collect(0)) == []
        pool.admit(asked("a", "b"))
        pool.sacrifice("memory is short")
        (death,) = deaths(pool.collect(0))
        assert (death.reason, ids(death.leased)) == ("memory is short", [1, 2])
        assert pool.activity == "nothing"


def test_what_a_sacrificed_worker_had_finished_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, batch=1, faults=[{"text": "bad", "do": "hang"}])
    rung: list[float] = []

    def start(_: int, ring: Callable[[], None]) -> Worker:
        return local_process(tmp_path, lambda: (rung.append(time.monotonic()), ring())[1])

    with WorkerPool(start, tmp_path) as pool:
        events_until(pool, loaded(1))
        rung.clear()
        pool.admit(asked("a", "bad", "c"))
        assert pool.activity == "computing"  # or about to
        while len(rung) < 3 or time.monotonic() - rung[-1] < 0.5:  # nobody has looked at what it said
            time.sleep(0.01)
        pool.sacrifice("memory is short")
        events = pool.collect(0)
        assert replies(events) == [1]
        (death,) = deaths(events)
        assert (ids(death.leased), death.started) == ([2, 3], {2})


def test_the_dead_are_not_kept_with_what_they_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, batch=1, faults=[{"text": "bad", "do": "kill"}])
    first = 900_000_000  # tells them from those of other tests
    with WorkerPool(lambda _, ring: local_process(tmp_path, ring), tmp_path) as pool:
        for _ in range(2):
            pool.admit(asked("bad", "never asked", first=first))
            assert deaths(events_until(pool, lambda events: bool(deaths(events))))
        gc.collect()
        requests = [each for each in gc.get_objects() if type(each) is Request]
        assert [each for each in requests if each.request_id >= first] == []


def test_a_model_that_kills_its_worker_is_tried_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, load_fault="no such fault")
    with a_pool(tmp_path, 1) as pool:
        events = events_until(pool, lambda events: any(isinstance(event, LoadFailed) for event in events))
    (failed,) = [event for event in events if isinstance(event, LoadFailed)]
    assert str(failed.error).startswith("the model could not be loaded: the worker ended by KeyError")
    assert str(tmp_path) in str(failed.error)
    assert [event.text for event in events if isinstance(event, Says)] == ["loading the model"] * 2


@pytest.mark.parametrize(
    ("name", "kind"), [("DoesNotFit", DoesNotFit), ("annotations", OvernightError), ("nope", OvernightError)]
)
def test_a_refusal_is_the_error_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[OvernightError]
) -> None:
    script(monkeypatch)
    named = type(name, (OvernightError,), {})

    def refuse(*_: object) -> None:
        raise named("too big")

    monkeypatch.setattr("pipeline.testing.scripted_backend.ScriptedBackend.open_engine", refuse)
    with a_pool(tmp_path, 1) as pool:
        events = events_until(pool, lambda events: any(isinstance(event, LoadFailed) for event in events))
    (failed,) = [event for event in events if isinstance(event, LoadFailed)]
    assert type(failed.error) is kind
    assert str(failed.error) == "too big"


def test_facts_of_all_workers_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, batch=1)
    with a_pool(tmp_path) as pool:
        assert pool.facts == {}
        events_until(pool, loaded(2))
        pool.admit(asked("a", "b", "c"))
        events_until(pool, lambda events: len(replies(events)) == 3)
        pool.close(at_once=False)
        facts = pool.facts
    assert facts["peaks"]["ram_bytes"] > 10**6
    assert facts["waiting"]["seconds"] >= facts["waiting"]["waited_seconds"] >= 0
    assert added_up([{"hits": 1, "by": {"a": 1}, "mb_per_second": 3}, {"hits": 2, "mb_per_second": 5}]) == {
        "hits": 3,
        "by": {"a": 1},
        "mb_per_second": 5,
    }


@given(st.integers(0, 20), st.lists(st.integers(0, 9), max_size=4))
def test_all_that_waits_is_leased_once_and_evenly(waiting: int, held: list[int]) -> None:
    requests = asked(*("x" * waiting))
    before = {number: list(range(100, 100 + count)) for number, count in enumerate(held)}
    leased = assign(requests, before)
    assert set(leased) == set(before)
    found = [request.request_id for each in leased.values() for request in each]
    assert sorted(found) == ([request.request_id for request in requests] if held else [])
    for number, mine in leased.items():
        assert ids(tuple(mine)) == sorted(ids(tuple(mine)))  # in their order
        if mine:
            fewest = min(len(before[other]) + len(leased[other]) for other in before)
            assert len(before[number]) + len(mine) <= fewest + 1
