"""What is shown of the summaries of a run; see ``pipeline.tasks.answers``."""

from __future__ import annotations

from typing import Any, ClassVar

from pipeline.results.evaluate.summaries import evaluate_summaries
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskRow
from pipeline.tasks.answers import Answers, Judge, Wanted


class SummarizeAnswers(Answers):
    """A text, which can be judged by reference summaries."""

    judged_by: ClassVar[Wanted | None] = "references"

    def evaluate(self, ledger: Ledger, task: TaskRow, judge: Judge) -> dict[str, Any]:
        """See Answers."""
        return evaluate_summaries(ledger, task, judge.paths, judge.field)
