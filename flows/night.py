"""One night, in plain functions: check the configuration, do the work of one kind of task, render the report.
Knows nothing of Prefect.

What a stage gives to the next is small plain data, because a display may want to show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.turns import take_turn
from pipeline.config import Config, load_config
from pipeline.errors import (
    EXIT_DONE,
    EXIT_SOME_FAILED,
    EXIT_STOPPED,
    EXIT_USAGE,
    AlreadyRunning,
    ConfigError,
    OvernightError,
    StoppedEarly,
    UsageError,
)
from pipeline.records import Progress
from pipeline.results.report import build_report, render_markdown, report_on
from pipeline.run.runner import RunResult, run
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_directory import LEDGER
from pipeline.system.stop_signal import StopSignal

Facts = dict[str, Any]
"""``{"exit_code", "ending", "message", "run_directory", "status", "exports"}``, all JSON."""

_NAMES = {EXIT_DONE: "Completed", EXIT_SOME_FAILED: "CompletedWithFailures", EXIT_STOPPED: "StoppedEarly"}
_LIMITED = "LimitReached"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a night ended: the command line's exit code, a name to show, and a sentence."""

    exit_code: int
    name: str
    message: str


ended: ContextVar[Callable[[Ending], None]] = ContextVar("ended", default=lambda _: None)
"""Who wants to hear of the ending even if the display of it fails."""


def check(kind: str, config: str, overrides: Sequence[str], limit: int | None) -> Facts:
    """Refuse early what cannot work: an unreadable configuration, no task of this kind, a limit below one.
    Raises UsageError.
    """
    settings = load_config(config, overrides)
    names = [task.name for task in settings.tasks if task.kind == kind]
    if not names:
        others = ", ".join(f"{task.name} ({task.kind})" for task in settings.tasks)
        raise ConfigError(f"{config} has no task of kind {kind}; it has {others}")
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}; give at least 1, or leave it out for all documents")
    return {"run_directory": settings.run.directory, "tasks": names}


def work(
    kind: str,
    config: str,
    overrides: Sequence[str],
    limit: int | None,
    *,
    observer: Callable[[Progress], None] = lambda _: None,
    patient: bool = False,
) -> Facts:
    """Do what the run directory does not hold yet. ``patient``: see ``watching``. An early stop is no error;
    raises UsageError.
    """
    settings = load_config(config, overrides)
    stop = StopSignal()
    try:
        with (
            watching(stop, patient=patient),
            stop.watch_deadline(settings.run.deadline),
            take_turn(settings.run.directory, kind) as turn,
        ):
            result = turn.when_free(lambda: _run(settings, kind, limit, observer, stop), observer, stop)
    except AlreadyRunning as error:
        return _facts(error.exit_code, "AlreadyRunning", f"Already running: {error}", settings.run.directory)
    except StoppedEarly as stopped:  # before the run itself began
        return _facts(stopped.exit_code, "StoppedEarly", _stopped(str(stopped)), settings.run.directory)
    if result.exit_code not in _NAMES:
        raise UsageError(result.reason) if result.exit_code == EXIT_USAGE else OvernightError(result.reason)
    names = [task.name for task in settings.tasks if task.kind == kind]
    return _facts(
        result.exit_code, _name(result, limit), _sentence(result, names, limit), str(result.directory)
    ) | {
        "status": result.status.to_json(),
        "exports": [table.to_json() for table in result.outputs],
    }


def reports(run_directory: str, tasks: Sequence[str]) -> dict[str, str]:
    """The report on each of the tasks as it stands now, from the ledger alone; none on a task that it does
    not know yet.
    """
    directory = Path(run_directory)
    with Ledger.open(directory / LEDGER, write=False) as ledger:
        whole = build_report(ledger, directory)
    return {name: render_markdown(report_on(whole, name)) for name in tasks if name in whole["tasks"]}


def ending(facts: Facts) -> Ending:
    """The ending of a night's facts, announced to whoever asked through ``ended``."""
    end = Ending(facts["exit_code"], facts["ending"], facts["message"])
    ended.get()(end)
    return end


@contextmanager
def watching(stop: StopSignal, *, patient: bool) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into a wish to stop.

    On a command line the second signal ends the process at once. A served run is told twice when its serving
    process is stopped (the terminal's Ctrl-C reaches both, then the serving process passes on a SIGTERM), and
    whoever serves it kills it if it lingers: it is ``patient`` and uses the time it has.
    """
    with stop.watch_signals(patient=patient):
        yield


def _run(
    settings: Config, kind: str, limit: int | None, observer: Callable[[Progress], None], stop: StopSignal
) -> RunResult:
    return run(settings, limit=limit, kinds={kind}, observer=observer, stop=stop)


def _facts(exit_code: int, name: str, message: str, directory: str) -> Facts:
    return {"exit_code": exit_code, "ending": name, "message": message, "run_directory": directory}


def _name(result: RunResult, limit: int | None) -> str:
    if result.exit_code == EXIT_DONE and _is_cut(result, limit):
        return _LIMITED
    return _NAMES[result.exit_code]


def _is_cut(result: RunResult, limit: int | None) -> bool:
    """Whether the limit, rather than the source, has ended the reading."""
    return limit is not None and result.status.limited


def _sentence(result: RunResult, names: Sequence[str], limit: int | None) -> str:
    """How the night ended, for its own tasks."""
    if result.exit_code == EXIT_STOPPED:
        return _stopped(result.reason)
    words = result.headline
    left = ""
    if _is_cut(result, limit):
        words = words.replace("All", f"The first {limit:,} documents are")
        left = " No others were looked at: start it again without a limit for all."
    tables = (f" Table: {each.output.name} ({each.exported.rows:,} rows)." for each in result.outputs)
    return f"{words}: {_counts(result, names)}.{left}{''.join(tables)} Report: {result.report}"


def _stopped(reason: str) -> str:
    return (
        f"Stopped early ({reason}). What is done is recorded; run the same again and it goes on from there."
    )


def _counts(result: RunResult, names: Sequence[str]) -> str:
    tasks = result.status.to_json()["tasks"]
    counts = {
        name: ", ".join(f"{count:,} {state}" for state, count in tasks[name].items() if count)
        for name in names
        if name in tasks
    }
    return "; ".join(f"{name} {words}" for name, words in counts.items())
