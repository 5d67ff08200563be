"""Serves one flow a registered kind of task as the deployment ``KIND/overnight``: ``overnight serve``.

The serving process starts each run in a process of its own, which works in the folder that it was started in,
and passes cancellations on to it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import zoneinfo
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import PrefectException
from prefect.flows import Flow
from prefect.runner import Runner
from prefect.schedules import Cron, Schedule
from prefect.types.entrypoint import EntrypointType

from flows.arguments import Once
from flows.claims import claim_before_taking, claiming
from flows.connection import require_server
from flows.kinds import flows
from flows.orphans import looking_after_orphans
from flows.patience import outlive_the_server
from flows.standing_aside import standing_aside
from pipeline.config import load_config
from pipeline.errors import EXIT_DONE, OvernightError, UsageError
from pipeline.system.standard_streams import forgive
from pipeline.tasks.registry import kind_of

NAME = "overnight"
_CRON = "0 22 * * *"
_LOCALTIME = Path("/etc/localtime")


def deployments(config: str, cron: str | None, timezone: str) -> list[RunnerDeployment]:
    """One a registered kind. Raises UsageError for a schedule that is none."""
    if timezone not in zoneinfo.available_timezones():
        raise UsageError(
            f"--timezone {timezone!r} is not a time zone; write for example Europe/Berlin or UTC"
        )
    try:
        schedule: Schedule | None = Cron(cron, timezone=timezone) if cron else None
    except ValueError as error:
        raise UsageError(
            f"--cron {cron!r} is not a schedule: {error}. Write five fields, for example {_CRON!r}"
        ) from None
    return [_deployment(flow, config, schedule) for flow in flows()]


def _deployment(flow: Flow[Any, Any], config: str, schedule: Schedule | None) -> RunnerDeployment:
    deployment = flow.to_deployment(
        name=NAME,
        schedule=schedule,
        parameters={"config": config},
        description=f"{kind_of(flow.name).does} in the configuration's source, every night; goes on where it "
        f"stopped.",
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    assert isinstance(deployment, RunnerDeployment)  # a coroutine only where an event loop runs
    return deployment


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until stopped. The exit code."""
    forgive()
    asked = _parser().parse_args(arguments)
    try:
        load_config(asked.config)
        address = require_server()
        _serve(
            deployments(asked.config, asked.cron if asked.cron != "none" else None, asked.timezone),
            asked,
            address,
        )
    except OvernightError as error:
        print(f"overnight: {error}", file=sys.stderr)
        return error.exit_code
    except (httpx.HTTPError, PrefectException) as error:
        print(
            f"overnight: the Prefect server was lost while serving began or ended ({error}); no run is "
            f"harmed.",
            file=sys.stderr,
        )
    return EXIT_DONE


def _serve(served: list[RunnerDeployment], asked: argparse.Namespace, address: str) -> None:
    outlive_the_server()
    with standing_aside(), claiming() as claims, looking_after_orphans(claims):
        claim_before_taking(claims)
        runner = Runner(name=NAME)
        for deployment in served:
            runner.add_deployment(deployment)
        print("\n".join(_announcement(served, asked, address)), flush=True)
        # Ctrl-C, too, waits for the runs to stop; by itself it would kill them
        signal.signal(signal.SIGINT, runner.handle_sigterm)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(runner.start())
    print("Stopped serving; the schedules rest until it is started again.", file=sys.stderr)


def _announcement(served: list[RunnerDeployment], asked: argparse.Namespace, address: str) -> list[str]:
    when = "no schedule" if asked.cron == "none" else f"schedule {asked.cron!r}, {asked.timezone} time"
    lines = [f"Serving on {address} ({when}; configuration {asked.config}):"]
    names = [f"{deployment.flow_name}/{deployment.name}" for deployment in served]
    lines += [f"  {name}" for name in names]
    lines += ["Start one now, from another terminal:"]
    lines += [f"  prefect deployment run {name}" for name in names]
    return [
        *lines,
        (
            "Keep this process running; Ctrl-C ends it, and with it the runs it started (they go on when "
            "started again)."
        ),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overnight serve", description="Serve the flows to a Prefect server, every night."
    )
    parser.add_argument(
        "--config",
        action=Once,
        default="configs/demo.yaml",
        help="the configuration that scheduled runs use (%(default)s)",
    )
    parser.add_argument("--cron", action=Once, default=_CRON, help="when all start, or 'none' (%(default)s)")
    parser.add_argument(
        "--timezone", action=Once, default=local_timezone(), help="of the schedule (%(default)s)"
    )
    return parser


def local_timezone() -> str:
    """IANA name of this machine's time zone, as far as it tells; else UTC. Prefect takes schedules in UTC
    unless told.
    """
    linked = str(_LOCALTIME.resolve()).rpartition("zoneinfo/")[2]
    known = zoneinfo.available_timezones()
    return next((name for name in (os.environ.get("TZ", "").lstrip(":"), linked) if name in known), "UTC")


if __name__ == "__main__":
    sys.exit(main())
