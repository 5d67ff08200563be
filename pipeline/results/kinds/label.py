"""What is shown of the labels of a run; see ``pipeline.tasks.answers``. Views, gold labels, calibration and
review have modules of their own: ``label_view``, ``kept_views``, ``gold``, ``gold_store``, ``calibrate``,
``review``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pipeline.errors import UsageError
from pipeline.results.calibrate import configured
from pipeline.results.evaluate import labels as evaluated
from pipeline.results.gold import read_gold
from pipeline.results.gold_store import kept_gold
from pipeline.results.kinds.label_report import LabelCounts, labels_section, view_lines
from pipeline.results.label_view import View, is_multi, labels_of, said_of, view_in_force
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskResult, TaskRow, answer_probability
from pipeline.tasks.answers import Answers, Column, ColumnType, Judge, Wanted
from pipeline.tasks.label.section import LabelTask


class LabelAnswers(Answers):
    """Labels with their probabilities, seen through calibrations that the ledger keeps."""

    judged_by: ClassVar[Wanted | None] = "gold"
    unsettled: ClassVar[str] = "not calibrated"

    def check(self, section: LabelTask) -> None:
        """See Answers: the gold labels that the run's end calibrates by."""
        configured.check_gold(section)

    def settle(self, ledger: Ledger, task: TaskRow, section: LabelTask) -> str:
        """See Answers: the calibration that the configuration asks for."""
        return configured.as_configured(ledger, task, section)

    def answer_type(self, task: TaskRow) -> ColumnType:
        """See Answers."""
        return "texts" if is_multi(task) else "text"

    def cells(self, result: TaskResult) -> Sequence[Any]:
        """See Answers: the answer's probability, and that of every label."""
        return answer_probability(result.value, result.probabilities), result.probabilities

    def flat_columns(self, task: TaskRow) -> Sequence[Column]:
        """See Answers: the probability of every label; of exclusive ones also the second and by how much the
        first is likelier.
        """
        several = is_multi(task)
        second = () if several else (Column("_second", "text"), Column("_margin", "number"))
        each = (Column(f"_probability_{name}", "number") for name in _known_labels(task))
        return Column("_probability", "number"), *second, *each

    def flat_cells(self, task: TaskRow, result: TaskResult) -> Sequence[Any]:
        """See Answers."""
        known = result.probabilities or {}
        each = (known.get(name) for name in _known_labels(task))
        second = () if is_multi(task) else _second(known)
        return answer_probability(result.value, result.probabilities), *second, *each

    def view(self, ledger: Ledger, task: TaskRow, number: int | None) -> View | None:
        """See Answers."""
        return view_in_force(ledger, task, number)

    def said(self, task: TaskRow, result: TaskResult) -> TaskResult:
        """See Answers: the likeliest label also where it was abstained from."""
        return said_of(task, result)

    def counts(self) -> LabelCounts:
        """See Answers."""
        return LabelCounts()

    def report_facts(self, ledger: Ledger, task: TaskRow, view: View | None) -> dict[str, Any]:
        """See Answers: the view in force, or why there is none."""
        shown = None if view is None else view.facts()
        return {"calibration_note": _why_uncalibrated(ledger, task), "view": shown}

    def report_lines(self, facts: Mapping[str, Any]) -> list[str]:
        """See Answers."""
        return view_lines(facts)

    def report_section(self, facts: Mapping[str, Any]) -> list[str]:
        """See Answers."""
        return labels_section(facts.get("labels"), facts.get("view"))

    def story(
        self, ledger: Ledger, task: TaskRow, key: str, result: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """See Answers: the answer as the view in force shows it."""
        return _calibrated(ledger, task, key, result)

    def story_lines(self, story: Mapping[str, Any]) -> list[str]:
        """See Answers."""
        return _calibrated_lines(story.get("calibrated"))

    def evaluate(self, ledger: Ledger, task: TaskRow, judge: Judge) -> dict[str, Any]:
        """See Answers."""
        if judge.paths:
            gold = read_gold(judge.paths, labels_of(task), multi=is_multi(task), label_field=judge.field)
        else:
            gold = kept_gold(ledger, task)
            if not gold:
                raise UsageError(f"the run keeps no gold labels of task {task.job.name!r}; give --gold FILE")
        return evaluated.evaluate_labels(ledger, task, gold, judge.view)

    def evaluation_heading(self, found: Mapping[str, Any]) -> list[str]:
        """See Answers."""
        return evaluated.heading(found)

    def evaluation_table(self, found: Mapping[str, Any]) -> list[str]:
        """See Answers."""
        return evaluated.table(found["per_label"])

    def report_evaluation(self, found: Mapping[str, Any]) -> list[str]:
        """See Answers."""
        return evaluated.markdown_heading(found)

    def report_evaluation_table(self, found: Mapping[str, Any]) -> list[str]:
        """See Answers."""
        return evaluated.markdown_table(found["per_label"])


def _known_labels(task: TaskRow) -> Sequence[str]:
    """Its labels; none of a task that the run directory does not hold yet."""
    return labels_of(task) if task.job.identity.get("task", {}).get("labels") else ()


def _second(probabilities: Mapping[str, float]) -> tuple[str | None, float | None]:
    """The label with the second highest probability, and how far it is behind the first."""
    order = sorted(probabilities, key=lambda name: -probabilities[name])
    if len(order) < 2 or not all(map(math.isfinite, probabilities.values())):
        return None, None
    return order[1], probabilities[order[0]] - probabilities[order[1]]


def _why_uncalibrated(ledger: Ledger, task: TaskRow) -> str | None:
    """What the end of the last run that tried had to say of the view that is shown; nothing once a person has
    said which it is.
    """
    run = next((run for run in reversed(ledger.runs()) if run["facts"].get("calibration") is not None), None)
    shown = ledger.shown_view(task.job.name)
    if run is None or (
        shown is not None and shown.by != "configuration" and shown.since > (run["ended_at"] or 0)
    ):
        return None
    reason: str | None = run["facts"]["calibration"].get(task.job.name)
    return reason


def _calibrated(ledger: Ledger, task: TaskRow, key: str, result: Mapping[str, Any] | None) -> dict[str, Any]:
    """The answer as the view in force shows it, beside what the model said itself; nothing where there is no
    view.
    """
    view = view_in_force(ledger, task)
    if view is None or result is None:
        return {}
    named = {name: result[name] for name in ("state", "value", "finish_reason", "probabilities", "scores")}
    found = TaskResult(**named, features=ledger.features(task.job.name, key))
    if not view.covers(found):
        return {}
    shown = view.apply([found])[0]
    return {
        "calibrated": {
            "view": view.number,
            "value": shown.value,
            "finish_reason": shown.finish_reason,
            "probabilities": shown.probabilities,
            "threshold": view.threshold,
            "sentence": view.sentence,
        }
    }


def _calibrated_lines(shown: Mapping[str, Any] | None) -> list[str]:
    """Raw numbers stand above, in the result; these are what exports show."""
    if shown is None:
        return []
    odds = ", ".join(
        f"{name} {number:.4f}"
        for name, number in sorted(shown["probabilities"].items(), key=lambda pair: -pair[1])
    )
    answer = "(abstained)" if shown["value"] is None else shown["value"]
    return [
        f"as view {shown['view']} shows it: {answer}",
        f"calibrated probabilities: {odds}",
        f"view: {shown['sentence']}",
    ]
