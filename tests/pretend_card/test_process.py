"""The process that has the cards: what happens in it is told as if it had happened here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pretend_card.card_process import CardProcess, Ended
from tests.pretend_card.conftest import _limit_seconds

TESTS = """
import pytest


@pytest.fixture(scope="module")
def once(): return []


def test_passes(once): once.append(1)
def test_shares_what_a_module_has(once): assert once == [1]
def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("not today")
def test_has_a_card(): import torch; assert torch.cuda.is_available()
def test_takes_its_time(): import time; time.sleep(0.3)
def test_ends_the_process(): import faulthandler; faulthandler._sigsegv()
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CardProcess]:
    folder = tmp_path_factory.mktemp("inside")
    (folder / "test_inside.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    found = CardProcess(folder)
    yield found
    found.close()


def outcomes(process: CardProcess, name: str, following: str | None = None) -> dict[str, str]:
    reports = process.run(f"test_inside.py::{name}", following and f"test_inside.py::{following}", 60)
    return {report["when"]: report["outcome"] for report in reports}


def test_outcomes_are_told(process: CardProcess) -> None:
    fine = dict.fromkeys(("setup", "call", "teardown"), "passed")
    assert outcomes(process, "test_passes", "test_shares_what_a_module_has") == fine
    assert outcomes(process, "test_shares_what_a_module_has") == fine
    assert outcomes(process, "test_fails") == {**fine, "call": "failed"}
    assert outcomes(process, "test_skips") == {**fine, "call": "skipped"}
    assert outcomes(process, "test_has_a_card") == fine


def test_a_test_has_as_long_as_its_own_limit_says(process: CardProcess) -> None:
    """A night of 36 documents takes longer than any other test."""
    (*_, last) = process.run("test_inside.py::test_takes_its_time", None, 60, grace_seconds=0)
    assert last["outcome"] == "passed"


def test_a_process_that_ends_is_an_error_with_its_last_words(process: CardProcess) -> None:
    with pytest.raises(Ended, match=r"(?s)ended with -11.*test_ends_the_process"):
        outcomes(process, "test_ends_the_process")


@pytest.mark.timeout(1234)
def test_the_limit_is_that_of_the_mark(request: pytest.FixtureRequest) -> None:
    assert _limit_seconds(request.node) == 1234


def test_a_test_that_cannot_be_ended_ends_with_the_process(tmp_path: Path) -> None:
    (tmp_path / "test_inside.py").write_text("def test_stays():\n    import time\n    time.sleep(60)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    process = CardProcess(tmp_path)
    with pytest.raises(Ended, match="ended with -9"):
        process.run("test_inside.py::test_stays", None, 0, grace_seconds=0.1)
    process.close()
