"""A configuration that a ledger has kept as JSON is asked with again: whatever its keys are."""

from __future__ import annotations

from pathlib import Path

from tests.nights import ANight, documents


def test_a_run_that_named_graphics_cards_by_number_is_shown_reviewed_and_reproduced(tmp_path: Path) -> None:
    memory = {"max_memory": {0: "7GiB", "cpu": "24GiB"}}
    night = ANight(tmp_path, documents(3, longest=3), extra={"model": memory})
    assert night.run().returncode == 0
    run = str(night.directory)
    review = ("review", run, "-o", str(tmp_path / "review.csv"))
    for command in (("reproduce", run, "d0001"), ("show", run, "d0001"), review):
        done = night.command(*command)
        assert done.returncode == 0, done.stderr
