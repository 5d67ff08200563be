"""A night without Prefect: how it ended, in a word and a sentence, and the report on each task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.night import reports, work
from tests.nights import ANight, documents


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ANight:
    first, *others = documents(12, longest=6)
    night = ANight(tmp_path, [first, first, *others])  # a row that repeats another counts for a limit
    monkeypatch.setenv("OVERNIGHT_SCRIPT", json.dumps(night.script))
    return night


def ended(night: ANight, kind: str, limit: int | None) -> dict[str, Any]:
    return work(kind, str(night.config), [], limit)


def test_a_limit_that_leaves_work_is_no_completed_night(night: ANight) -> None:
    limited = ended(night, "label", 5)
    assert (limited["exit_code"], limited["ending"]) == (0, "LimitReached")
    assert limited["message"].startswith("The first 5 documents are done: topic 4 done. No others ")
    more_than_there_are = ended(night, "label", 100)
    assert (more_than_there_are["exit_code"], more_than_there_are["ending"]) == (0, "Completed")
    assert more_than_there_are["message"].startswith("All done: topic 12 done. Report: ")
    other = ended(night, "summarize", 5)
    assert other["ending"] == "LimitReached"
    assert "The first 5 documents are done: summary 8 pending, 4 done." in other["message"]
    assert "topic" not in other["message"]
    _each_task_has_its_own_report(night)


def _each_task_has_its_own_report(night: ANight) -> None:
    found = reports(str(night.directory), ["topic", "summary", "to come"])
    assert list(found) == ["topic", "summary"]
    assert "## Task topic" in found["topic"]
    assert "## Task summary" not in found["topic"]
    assert "**Not complete" in found["summary"]
    assert "8 pending" in found["summary"]
    assert found["topic"] != found["summary"]
