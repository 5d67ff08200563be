"""What a person reads in the log of a flow run: sentences. A user's mistake shows no traceback, libraries
stay silent about routine.
"""

from __future__ import annotations

import logging

from rich.console import Console

from pipeline.errors import OvernightError

_RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")


def calm_logs() -> None:
    """Make the loggers of flow and task runs write our own errors as their sentence. Harmless to call
    again.
    """
    for name in _RUN_LOGGERS:
        logging.getLogger(name).addFilter(own_errors_as_sentences)
    for handler in logging.getLogger().handlers:
        if not isinstance(handler, logging.FileHandler):  # the run directory's log keeps everything
            handler.addFilter(warnings_or_prefect)
        if isinstance(console := getattr(handler, "console", None), Console):
            _outlive_the_reader(console)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line for each request


def _outlive_the_reader(console: Console) -> None:
    """Fall silent when whoever read the console's output is gone (a serving process that was killed), where
    rich would end the program.
    """

    def fall_silent() -> None:
        console.quiet = True

    console.on_broken_pipe = fall_silent  # type: ignore[method-assign]  # rich means it to be replaced


def own_errors_as_sentences(record: logging.LogRecord) -> bool:
    """Replace the traceback of an error that was raised on purpose by its message."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, OvernightError):
        record.msg, record.args = "%s", (str(error),)
        record.exc_info = record.exc_text = None
    return True


def warnings_or_prefect(record: logging.LogRecord) -> bool:
    """Of everyone but Prefect, only warnings reach the console: a run raises the root level to INFO for its
    own log file.
    """
    return record.levelno >= logging.WARNING or record.name.startswith("prefect")
