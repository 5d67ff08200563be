"""The morning's report, from the ledger alone: what was read, what was answered, what was not and why, and
how it went.

``report.json`` holds the facts, ``report.md`` shows them, ``rejects.jsonl`` lists every row that was not a
document.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pipeline.results.report.evaluation import last_evaluation
from pipeline.results.report.markdown import render_markdown
from pipeline.results.report.plan_vs_actual import compared
from pipeline.results.report.tasks import Reasons, TaskFacts
from pipeline.results.run_state import UNKNOWN, run_state
from pipeline.results.views import apply_to
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import Status, TaskResult, TaskRow
from pipeline.system.atomic_write import replace_file
from pipeline.system.units import moment
from pipeline.system.writable import check_writable, written_later
from pipeline.tasks.answers import View
from pipeline.tasks.registry import answers_of

__all__ = ["build_report", "check_report", "render_markdown", "report_on", "write_report"]

_FILES = ("report.json", "report.md", "rejects.jsonl")
_SHOWN_REJECTS = 20
_SEEN_AT_ONCE = 1000
_OF_A_RESULT = ("state", "value", "finish_reason", "probabilities", "scores", "features")
_RUN_FACTS = ("plan", "loaded", "waiting", "peaks", "store", "versions", "model", "notes", "config")


def build_report(ledger: Ledger, directory: Path | None = None) -> dict[str, Any]:
    """Facts that JSON can hold, with the last evaluation kept in ``directory``. Raises LedgerError when the
    counts do not add up.
    """
    status = ledger.status()
    runs = ledger.runs()
    inputs = {
        "documents": status.documents,
        "rejected": status.rejected,
        "duplicates": status.duplicates,
        "clashing_ids": status.clashing_ids,
        "clashes": [{"id": name, "texts": texts} for name, texts in ledger.clashing_ids()],
        "read_completely": status.read_completely,
        "complete": status.complete,
    }
    tasks = {task.job.name: _task(ledger, task, status.tasks[task.job.name]) for task in ledger.tasks()}
    facts = {
        "format": 1,
        "inputs": inputs,
        "reading": _reading(ledger, status),
        "rejects": _rejects(ledger.rejects()),
        "tasks": tasks,
        "runs": [_run(run) for run in runs],
        **_loaded(runs),
        "outcome": _outcome(runs),
        "now": _now(ledger, runs, directory),
        "evaluation": last_evaluation(directory, {name: _view(task) for name, task in tasks.items()}),
    }
    plain: dict[str, Any] = _finite(facts)
    return plain


def check_report(directory: Path) -> None:
    """Before a run: its report can be written. Raises UsageError, StoppedEarly where the disk is full."""
    for name in _FILES:
        check_writable(directory / name)


def report_on(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What ``build_report`` found, of one task alone."""
    task, evaluation = report["tasks"][name], report["evaluation"]
    left = task["states"]["pending"] or task["states"]["running"]
    complete = report["inputs"]["read_completely"] and not left
    if evaluation is not None:
        judged = {key: found for key, found in evaluation["tasks"].items() if key == name}
        others = {key: view for key, view in evaluation["other_views"].items() if key == name}
        mine = {**evaluation, "tasks": judged, "other_views": others, "plots": []}
        evaluation = mine if judged or others else None
    return {
        **report,
        "inputs": {**report["inputs"], "complete": complete},
        "reading": {**report["reading"], "waiting": report["reading"]["waiting"] and bool(left)},
        "tasks": {name: task},
        "evaluation": evaluation,
    }


def write_report(ledger: Ledger, directory: Path) -> None:
    """Write the three files into the run directory, each whole or not at all. Raises StoppedEarly where one
    cannot be written.
    """
    facts = build_report(ledger, directory)
    in_json, in_markdown, rejects = (directory / name for name in _FILES)
    with _written(in_json) as stream:
        stream.write(json.dumps(facts, indent=2, allow_nan=False).encode("ascii"))
    with _written(in_markdown) as stream:
        stream.write(render_markdown(facts).encode("utf-8", "replace"))
    with _written(rejects) as stream:
        for reject in ledger.rejects():
            stream.write(json.dumps(reject).encode("ascii") + b"\n")


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    with written_later(path, "the same command"), replace_file(path, private=True) as stream:
        yield stream


def _reading(ledger: Ledger, status: Status) -> dict[str, Any]:
    """What the reading that counts did not see, and whether works wait that another run would do."""
    seen = [ledger.states_seen(task.job.name) for task in ledger.tasks()]
    return {
        "limited": status.limited,
        "unreadable": status.unreadable if status.unreadable_files else None,
        "unreadable_rows": status.unreadable_rows,
        "left_out_rows": status.left_out_rows,
        "waiting": any(states["pending"] or states["running"] for states in seen),
        "sentences": status.sentences,
    }


def _view(task: Mapping[str, Any]) -> int:
    """The number of the view that a task's answers are shown through; 0: what the model said itself."""
    return task["view"]["number"] if task.get("view") else 0


def _task(ledger: Ledger, task: TaskRow, states: Mapping[str, int]) -> dict[str, Any]:
    """Facts of one task, its answers as the view in force shows them."""
    answers = answers_of(task.job.kind)
    view = answers.view(ledger, task, None)
    rows = ledger.results(task.job.name, scores=view is not None)
    counted = TaskFacts(task, states, ledger.some_id).add_all(rows if view is None else _seen(view, rows))
    return counted.facts() | answers.report_facts(ledger, task, view)


def _seen(view: View, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """``rows`` of ``Ledger.results`` with the answers that the view gives."""
    iterator = iter(rows)
    while block := list(itertools.islice(iterator, _SEEN_AT_ONCE)):
        results = [TaskResult(**{name: row[name] for name in _OF_A_RESULT}) for row in block]
        for row, result in zip(block, apply_to(view, results), strict=True):
            yield {
                **row,
                "value": result.value,
                "finish_reason": result.finish_reason,
                "probabilities": result.probabilities,
            }


def _rejects(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    iterator = iter(rows)
    first = [dict(row) for row in itertools.islice(iterator, _SHOWN_REJECTS)]
    reasons = Reasons()
    for row in itertools.chain(first, iterator):
        reasons.add(row["reason"])
    return {"by_reason": reasons.listed(), "first": first}


def _run(run: Mapping[str, Any]) -> dict[str, Any]:
    ended = run["ended_at"]
    return {
        "run": run["id"],
        "started": moment(run["started_at"]),
        "ended": None if ended is None else moment(ended),
        "seconds": None if ended is None else ended - run["started_at"],
        "exit_code": run["exit_code"],
        "reason": run["reason"],
    }


def _loaded(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Facts of the last run that loaded the model; of the last one where none has."""
    if not runs:
        return dict.fromkeys(_RUN_FACTS)
    chosen = next((run for run in reversed(runs) if "loaded" in run["facts"]), runs[-1])
    return {name: chosen["facts"].get(name) for name in _RUN_FACTS}


def _now(ledger: Ledger, runs: list[dict[str, Any]], directory: Path | None) -> str | None:
    """Where a run is that has not ended, or that it was cut off; None where the last one has ended."""
    if not runs or runs[-1]["ended_at"] is not None:
        return None
    return UNKNOWN if directory is None else run_state(directory, ledger).sentence


def _outcome(runs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Prediction and outcome of the last run that loaded the model; None where none has, or where it could
    not be predicted.
    """
    chosen = next((run for run in reversed(runs) if "loaded" in run["facts"]), None)
    return (
        None
        if chosen is None or not chosen["facts"].get("forecast")
        else compared(chosen["facts"], complete=chosen["exit_code"] in (0, 3))
    )


def _finite(value: Any) -> Any:
    """``value`` with plain string keys and null for what JSON has no number for."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
