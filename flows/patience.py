"""Keeps a serving process alive while its server is away.

Prefect's loops give up after three requests in a row without an answer. When the poll for work gives up, the
serving process ends and takes the runs under way down with it: a server restarted at night would end the
night. When the watch for cancellations gives up, it stays off, and no later run can be cancelled. Prefect has
no setting for either, so the loop that both use is given a forgiving errand.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from prefect.exceptions import PrefectHTTPStatusError
from prefect.utilities.services import critical_service_loop

LOOP = "critical_service_loop"
PLACES = ("prefect.runner._scheduled_run_poller", "prefect._internal._observation_delivery")
"""Modules of Prefect that call the loop by this name."""

_log = logging.getLogger("prefect.overnight")


def outlive_the_server() -> None:
    """Make Prefect's loops in this process go on asking. A Prefect that is built otherwise is left as it is,
    said out loud.
    """
    for place in PLACES:
        try:
            names = vars(importlib.import_module(place))
        except ImportError:
            names = {}
        if LOOP in names:
            names[LOOP] = patient_loop
        else:
            _log.warning(
                "This version of Prefect has no %s in %s: losing the server for a minute may end runs "
                "under way.",
                LOOP,
                place,
            )


async def patient_loop(workload: Callable[[], Awaitable[Any]], **options: Any) -> None:
    """Prefect's loop, except that a server which does not answer is no reason to end; said once when it goes
    and once when it is back.
    """
    lost = False

    async def ask() -> None:
        nonlocal lost
        try:
            await workload()
        except (httpx.TransportError, PrefectHTTPStatusError) as error:
            if isinstance(error, PrefectHTTPStatusError) and error.response.status_code < 500:
                raise
            if not lost:
                _log.warning(
                    "The Prefect server does not answer (%s). Runs under way go on; asking until it does.",
                    error,
                )
            lost = True
        else:
            if lost:
                _log.info("The Prefect server answers again.")
            lost = False

    await critical_service_loop(workload=ask, **options)
