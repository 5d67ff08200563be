"""Commits of what has landed: together while the last one is a moment ago, at once when asked, and nothing
twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.records import Decode, EncodedPrompt, Generation, Step
from pipeline.run import commit_buffer
from pipeline.run.commit_buffer import CommitBuffer
from pipeline.stores.ledger.ledger import Ledger
from pipeline.tasks.driver import Reply
from tests.stores.ledger.ledgers import begun, documents, done


def states(ledger: Ledger) -> list[str]:
    return [row.results["topic"].state for row in ledger.rows()]


def test_documents_wait_for_each_other_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = documents(4)
    outcomes = [done("topic", row.key) for row in rows]
    monkeypatch.setattr(commit_buffer, "_COMMIT_SECONDS", 10**6)
    with Ledger.open(tmp_path / "ledger.sqlite", write=True) as ledger:
        kept = CommitBuffer(ledger, begun(ledger, rows))
        assert kept.commit(at_once=True) == []
        kept.add(outcomes[:1], ())
        assert kept.commit() == outcomes[:1]  # after a quiet time nothing waits
        kept.add(outcomes[1:2], ())
        kept.add(outcomes[2:3], ())
        assert kept.commit() == []
        assert states(ledger) == ["done", "pending", "pending", "pending"]
        assert kept.commit(at_once=True) == outcomes[1:3]
        assert states(ledger) == ["done", "done", "done", "pending"]
        kept.add(outcomes[3:], ())
        monkeypatch.setattr(commit_buffer, "_COMMIT_SECONDS", 0)
        assert kept.commit() == outcomes[3:]
        assert kept.commit(at_once=True) == []
        assert states(ledger) == ["done"] * 4


def test_replies_inside_documents_are_kept_with_the_outcomes(tmp_path: Path) -> None:
    (row,) = documents(1)
    step = Step("map/0", EncodedPrompt((1, 2), 0, 1), Decode(4), (0, 3))
    with Ledger.open(tmp_path / "ledger.sqlite", write=True) as ledger:
        kept = CommitBuffer(ledger, begun(ledger, [row]))
        kept.add((), [Reply(("topic", row.key), step, Generation(7, (1, 2)))])
        assert kept.commit(at_once=True) == []
        assert ledger.replies("topic", row.key)[step.key].token_ids == (1, 2)
        assert states(ledger) == ["pending"]
