"""A flow as a script: arguments in, a temporary Prefect server beside it, the command line's exit codes
out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from prefect.exceptions import Abort
from prefect.settings import PREFECT_API_URL

from flows import night
from flows.arguments import Once
from flows.board import SERVER_ERRORS
from flows.connection import require_server
from flows.night import Ending
from flows.server import start_temporary_server
from pipeline.errors import EXIT_FAULT, OvernightError
from pipeline.system.standard_streams import forgive


def main(flow: Callable[..., Any], kind: str, arguments: Sequence[str] | None = None) -> int:
    """Run ``flow`` once. The exit code: 0 all done, 3 some documents failed, 2 wrong usage, 75 stopped early,
    1 a fault of ours.
    """
    forgive()
    asked = _parser(kind).parse_args(arguments)
    endings: list[Ending] = []
    night.ended.set(endings.append)
    try:
        # before the seconds that a server takes
        night.check(kind, asked.config, asked.overrides, asked.limit)
        _find_server()
        flow(config=asked.config, overrides=asked.overrides, limit=asked.limit)
    except OvernightError as error:
        print(f"overnight: {error}", file=sys.stderr)
        return error.exit_code
    except SERVER_ERRORS as error:
        if not endings:
            print(
                f"overnight: Prefect failed: {error} `overnight run {asked.config}` needs no Prefect.",
                file=sys.stderr,
            )
            return EXIT_FAULT
        print(f"overnight: the Prefect server was lost ({error}); the run itself was not.", file=sys.stderr)
    except Abort:
        pass  # cancelled in the UI, then stopped by a signal
    print(endings[-1].message)
    return endings[-1].exit_code


def _parser(kind: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m flows.once {kind}", description=f"Run the flow {kind} once, with a temporary server."
    )
    parser.add_argument(
        "config",
        nargs="?",
        default="configs/demo.yaml",
        metavar="CONFIG",
        help="the YAML configuration (%(default)s)",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="A.B=C",
        help="override a key; may be repeated",
    )
    parser.add_argument("--limit", action=Once, type=int, metavar="N", help="only the first N documents")
    return parser


def _find_server() -> None:
    """The server that is set must answer; where none is set, a temporary one is started."""
    if PREFECT_API_URL.value():
        require_server()
    else:
        start_temporary_server()
