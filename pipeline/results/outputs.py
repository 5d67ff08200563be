"""The files that a run leaves for people, its exports: refused before the night where they could not be
written, and at its end each written whether or not the others can be.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import Config
from pipeline.errors import StoppedEarly, UsageError
from pipeline.records import TaskJob
from pipeline.results.export import Exported, export
from pipeline.results.export.layout import Layout, Output
from pipeline.results.export.places import check_foreign, check_output
from pipeline.sources import source_files
from pipeline.stores.ledger.ledger import Ledger
from pipeline.stores.ledger.queries import TaskRow
from pipeline.system.run_directory import RunDirectory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """What was ``exported``; or ``error``: why there is nothing, and which command writes it."""

    output: Output
    exported: Exported = Exported()  # noqa: RUF009  # frozen
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As ``overnight run --json`` prints it."""
        told = self.exported
        return {
            "output": self.output.name,
            "rows": told.rows,
            "pending": told.pending,
            "notes": list(told.sentences),
            "error": self.error,
        }


def all_outputs(config: Config, given: Sequence[Output]) -> list[Output]:
    """The tables of the configuration, and those ``given`` beside it; a file that both name is written once,
    as given.
    """
    named = {None if output.path is None else os.path.realpath(output.path) for output in given}
    return [*(each for each in configured(config) if os.path.realpath(each.name) not in named), *given]


def configured(config: Config) -> list[Output]:
    """The tables of the configuration."""
    return [
        Output(
            Path(each.path),
            Layout(
                None if each.format == "auto" else each.format,
                None if each.fields == "all" else tuple(each.fields),
                each.flat,
            ),
        )
        for each in config.run.output
    ]


def check_outputs(config: Config, outputs: Sequence[Output]) -> None:
    """Before a run: its exports can be written to ``outputs``, and replace nothing but earlier exports.
    Raises UsageError, StoppedEarly where a disk is full.
    """
    if not outputs:
        return
    inputs = [*source_files(config.source), *config.source.paths]
    tasks = _tasks(config)
    for output in outputs:
        if output.path is not None:
            check_output(output.path, output.layout, inputs)
            check_foreign(output.path, tasks, output.layout, beside=None)


def write_outputs(ledger: Ledger, directory: Path, outputs: Sequence[Output]) -> list[Written]:
    """After a run: every export that can be written."""
    return [_write(ledger, directory, output) for output in outputs]


def _write(ledger: Ledger, directory: Path, output: Output) -> Written:
    again = output.command(directory)
    try:
        return Written(output, export(ledger, output.path, output.layout, again=again))
    except StoppedEarly as stopped:
        told = str(stopped)
    except UsageError as refused:  # another name would help only now
        told = f"{str(refused).partition(';')[0]}; once that is mended, {again} writes it"
    _log.error("%s", told)
    return Written(output, error=told)


def _tasks(config: Config) -> list[TaskRow]:
    """Those that the run directory knows, whose answers an earlier export may hold, and those of the
    configuration.
    """
    place = RunDirectory(config.run.directory)
    known: list[TaskRow] = []
    if os.path.exists(place.ledger):  # noqa: PTH110  # raises nothing, whatever the place is called
        with Ledger.open(place.ledger, write=False) as ledger:
            known = ledger.tasks()
    names = {task.job.name for task in known}
    new = [TaskRow(TaskJob(task.name, task.kind, {}), 1) for task in config.tasks if task.name not in names]
    return known + new
