"""The ledger against a plain model in memory, through any order of events of a night."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pipeline.errors import JobChanged, LedgerError
from pipeline.records import STATES, Document, TaskJob
from pipeline.stores.ledger.ledger import Ledger
from tests.stores.ledger.ledgers import document as make
from tests.stores.ledger.ledgers import done, failed, job, read, reject

POOL = [make(name, text) for name in ("a", "b", "c") for text in ("one", "two", " \n")]
VERSIONS = {
    name: [job(name, f"Which, in way {number}?") for number in range(3)] for name in ("topic", "mood")
}


@dataclass
class Work:
    state: str
    seen: int
    attempts: int = 0
    crashes: int = 0
    value: Any = None


@dataclass
class Model:
    """What the ledger should say."""

    # (document key, occurrence), in the order of the last reading
    rows: list[tuple[str, int]] = field(default_factory=list)
    seen: dict[tuple[str, int], int] = field(default_factory=dict)
    # by name and fingerprint, then key
    works: dict[tuple[str, str], dict[str, Work]] = field(default_factory=dict)
    known: dict[str, set[str]] = field(default_factory=dict)  # fingerprints that a name has had
    active: dict[str, TaskJob] = field(default_factory=dict)
    readings: int = 0
    complete: int = 0
    rejected: int = 0

    def here(self) -> list[tuple[str, int]]:
        return [row for row, seen in self.seen.items() if seen >= self.complete]

    def work(self, name: str) -> dict[str, Work]:
        return self.works.setdefault((name, self.active[name].fingerprint), {})

    def read(self, rows: list[Document], complete: bool) -> None:
        self.readings += 1
        counted: Counter[str] = Counter()
        self.rows = []
        for row in rows:
            self.rows.append((row.key, counted[row.key]))
            self.seen[self.rows[-1]] = self.readings
            counted[row.key] += 1
            for name in self.active:
                works = self.work(name)
                works.setdefault(
                    row.key, Work("pending" if row.text.strip() else "skipped", 0)
                ).seen = self.readings
        if complete:
            self.complete = self.readings

    def states(self, name: str) -> dict[str, int]:
        counts = Counter(work.state for work in self.work(name).values() if work.seen >= self.complete)
        unknown = len({key for key, _ in self.here()}) - sum(counts.values())
        return {state: counts[state] + (unknown if state == "pending" else 0) for state in STATES}


def _line(row: Any) -> str:
    return json.dumps(row, sort_keys=True)


class LedgerMachine(RuleBasedStateMachine):
    """Every rule does the same to both; the invariants compare all that can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-"))
        self.model = Model()
        self.documents = {row.key: row for row in POOL}

    @initialize()
    def start(self) -> None:
        self.ledger = Ledger.open(self.folder / "ledger.sqlite", write=True)
        self._accept("topic", 0, fork=False)
        self.run = self.ledger.begin_run({})

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.folder)

    def _accept(self, name: str, version: int, *, fork: bool) -> None:
        chosen = VERSIONS[name][version]
        known = self.model.known.setdefault(name, set())
        if known and chosen.fingerprint not in known and not fork:
            with pytest.raises(JobChanged, match=f"way {version}"):
                self.ledger.accept_tasks([chosen], fork=False)
            return
        self.ledger.accept_tasks([chosen], fork=fork)
        known.add(chosen.fingerprint)
        self.model.active[name] = chosen

    def _some(self, data: st.DataObject, *states: str) -> tuple[str, list[str]]:
        name = data.draw(st.sampled_from(sorted(self.model.active)))
        fitting = sorted(key for key, work in self.model.work(name).items() if work.state in states)
        return name, data.draw(st.lists(st.sampled_from(fitting), unique=True)) if fitting else []

    @rule(name=st.sampled_from(sorted(VERSIONS)), version=st.integers(0, 2), fork=st.booleans())
    def accept(self, name: str, version: int, fork: bool) -> None:
        self._accept(name, version, fork=fork)

    @rule(
        rows=st.lists(st.sampled_from(POOL), max_size=12), rejects=st.integers(0, 3), complete=st.booleans()
    )
    def read(self, rows: list[Document], rejects: int, complete: bool) -> None:
        read(self.ledger, self.run, rows, [reject(line) for line in range(rejects)], complete=complete)
        self.model.read(rows, complete)
        self.model.rejected = rejects

    @rule(data=st.data())
    def mark(self, data: st.DataObject) -> None:
        name, keys = self._some(data, "pending")
        self.ledger.mark(self.run, [(name, key) for key in keys])
        for key in keys:
            work = self.model.work(name)[key]
            work.state, work.attempts = "running", work.attempts + 1

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        name, keys = self._some(data, "pending", "running")
        outcomes = [
            data.draw(st.sampled_from((done(name, key), failed(name, key), failed(name, key, "quarantined"))))
            for key in keys
        ]
        self.ledger.finish(self.run, outcomes)
        for key, outcome in zip(keys, outcomes, strict=True):
            self.model.work(name)[key].state = outcome.state
            self.model.work(name)[key].value = outcome.answer.value if outcome.answer else None

    @rule(data=st.data())
    def finish_what_is_finished(self, data: st.DataObject) -> None:
        name, over = self._some(data, "done", "failed", "quarantined", "skipped")
        _, open_ = self._some(data, "running")
        if over:
            with pytest.raises(LedgerError):  # and none of the batch counts
                self.ledger.finish(
                    self.run, [done(name, key) for key in [*(set(open_) & set(self.model.work(name))), *over]]
                )

    @rule(data=st.data(), outcome=st.sampled_from(("crashed", "interrupted", "out_of_memory")))
    def drop(self, data: st.DataObject, outcome: str) -> None:
        name, keys = self._some(data, "running")
        self.ledger.drop(self.run, [(name, key) for key in keys], outcome, "because")
        for key in keys:
            work = self.model.work(name)[key]
            work.state, work.crashes = "pending", work.crashes + (outcome == "crashed")

    @rule()
    def die_and_come_back(self) -> None:
        self.ledger.close()
        self.ledger = Ledger.open(self.folder / "ledger.sqlite", write=True)
        self.run = self.ledger.begin_run({})
        for works in self.model.works.values():
            for work in works.values():
                work.state = "pending" if work.state == "running" else work.state

    @rule(quarantined=st.booleans())
    def retry(self, quarantined: bool) -> None:
        states = ("failed", "quarantined") if quarantined else ("failed",)
        expected = [
            work
            for name in self.model.active
            for work in self.model.work(name).values()
            if work.state in states
        ]
        assert self.ledger.retry(states=states) == len(expected)
        for work in expected:
            work.state, work.crashes, work.value = "pending", 0, None

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        if not self.model.active:
            return
        status = self.ledger.status()
        here = self.model.here()
        keys = {key for key, _ in here}
        assert (status.documents, status.duplicates, status.rejected) == (
            len(keys),
            len(here) - len(keys),
            self.model.rejected,
        )
        assert status.clashing_ids == sum(
            count > 1 for count in Counter(self.documents[key].id for key in keys).values()
        )
        assert {name: dict(states) for name, states in status.tasks.items()} == {
            name: self.model.states(name) for name in self.model.active
        }
        assert all(sum(states.values()) == status.documents for states in status.tasks.values())

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        if not self.model.active:
            return
        rows = [
            (
                row.input.document_key,
                {name: (row.results[name].state, row.results[name].value) for name in row.results},
            )
            for row in self.ledger.rows()
        ]
        expected = [
            (key, {name: self._shown(name, key) for name in self.model.active}) for key, _ in self._order()
        ]
        if self.model.complete == self.model.readings:
            assert rows == expected
        assert [task.job.name for task in self.ledger.tasks()] == list(self.model.active)
        assert Counter(map(_line, rows)) == Counter(map(_line, expected))

    def _order(self) -> list[tuple[str, int]]:
        return self.model.rows if self.model.complete == self.model.readings else self.model.here()

    def _shown(self, name: str, key: str) -> tuple[str, Any]:
        work = self.model.work(name).get(key)
        return (
            ("pending", None) if work is None else (work.state, work.value if work.state == "done" else None)
        )

    @invariant()
    def what_is_left_is_that_of_the_model(self) -> None:
        for name in self.model.active:
            found = self.ledger.pending(name, [row.key for row in POOL])
            left = {key: work for key, work in self.model.work(name).items() if work.state == "pending"}
            assert {key: (work.attempts, work.crashes) for key, work in found.items()} == {
                key: (work.attempts, work.crashes) for key, work in left.items()
            }
            present = [self.documents[key] for key, work in left.items() if work.seen == self.model.readings]
            assert self.ledger.pending_size(name) == (len(present), sum(len(row.text) for row in present))


LedgerMachine.TestCase.settings = settings(
    max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedgerMachine = LedgerMachine.TestCase


@pytest.mark.full
def test_long_nights() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    thorough = settings(
        max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(LedgerMachine, settings=thorough)
