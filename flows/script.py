"""A flow as a script: arguments in, a temporary Prefect server beside it, the command line's exit codes out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from flows import night
from flows.board import SERVER_ERRORS
from flows.connection import require_server
from flows.night import Ending, Kind
from pipeline.errors import EXIT_FAULT, OvernightError

# Measured 5 to 15 s on two idle cores; Prefect's own limit of 20 s is too tight on a busy machine.
_STARTUP_SECONDS = 180
# For the server's process alone, which inherits our standard error. Its background services share one SQLite file: "database is
# locked" and connections cancelled at its end are logged at ERROR with tracebacks by sqlalchemy, docket and asyncio, through the root
# logger. A user can do nothing about them, and what matters reaches us as the answer to a request.
_SERVER_ENVIRONMENT = {"PREFECT_LOGGING_ROOT_LEVEL": "CRITICAL", "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL"}


def main(flow: Callable[..., Any], kind: Kind, arguments: Sequence[str] | None = None) -> int:
    """Run ``flow`` once. The exit code: 0 all done, 3 some documents failed, 2 wrong usage, 75 stopped early, 1 a fault of ours."""
    asked = _parser(kind).parse_args(arguments)
    endings: list[Ending] = []
    night.ended.set(endings.append)
    try:
        night.check(kind, asked.config, asked.overrides, asked.limit)  # before the seconds that a server takes
        with _server():
            flow(config=asked.config, overrides=asked.overrides, limit=asked.limit)
    except OvernightError as error:
        print(f"overnight: {error}", file=sys.stderr)
        return error.exit_code
    except SERVER_ERRORS as error:
        if not endings:
            print(f"overnight: Prefect failed: {error} `overnight run {asked.config}` needs no Prefect.", file=sys.stderr)
            return EXIT_FAULT
        print(f"overnight: the Prefect server was lost ({error}); the run itself was not.", file=sys.stderr)
    print(endings[-1].message)
    return endings[-1].exit_code


def _parser(kind: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python flows/{kind}.py", description=f"Run the flow {kind} once, with a temporary server.")
    parser.add_argument("config", nargs="?", default="configs/demo.yaml", metavar="CONFIG", help="the YAML configuration (%(default)s)")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="A.B=C", help="override a key; may be repeated")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N documents")
    return parser


def _server() -> AbstractContextManager[Any]:
    """Settings under which the flow finds its server: the one that is set, which must answer, or a quiet temporary one."""
    if PREFECT_API_URL.value():
        require_server()
    for name, value in _SERVER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # read by the server's process; logging here is already set up
    chosen = {PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: _STARTUP_SECONDS, PREFECT_SERVER_ANALYTICS_ENABLED: False}
    return temporary_settings(set_defaults=chosen)
