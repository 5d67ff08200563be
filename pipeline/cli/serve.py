"""``overnight serve``: hands over to the display, which this program knows by name only."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.errors import UsageError
from pipeline.system.child_python import command_of, environment


def serve(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="The YAML configuration of scheduled runs."),
    ] = None,
    named: Annotated[Path | None, typer.Option("--config", help="The same, by name.")] = None,
    cron: Annotated[
        str | None,
        typer.Option(help="When all start, in five fields, or 'none'; at 22:00 otherwise."),
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Of the schedule, as Europe/Berlin. This machine's otherwise.")
    ] = None,
) -> None:
    """Serve a flow for each kind of task to a Prefect server: on a schedule, and when asked to."""
    if config is not None and named is not None:
        raise UsageError(f"two configurations are named, {config} and {named}: keep one of the two")
    asked = {"--config": config or named, "--cron": cron, "--timezone": timezone}
    arguments = [f"{option}={value}" for option, value in asked.items() if value is not None]
    # In this very process, so that signals and the terminal are its own; and in a Python of its own, which
    # imports nothing from the user's folder.
    os.execve(sys.executable, [*command_of("flows.serve"), *arguments], environment())  # noqa: S606  # no shell is wanted
