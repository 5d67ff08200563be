"""Flow runs whose processes are gone are shown as what they are: Crashed, or Cancelled where somebody has
cancelled them.

Looked for when a serving process starts and every few seconds while it serves: a run may outlive the process
that served it, and then there is nobody else to pass on a cancellation, or to see it die.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterType,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Cancelled, Crashed
from psutil import NoSuchProcess

from flows.board import SERVER_ERRORS
from flows.claims import Claims, living_engines

_LOOK_SECONDS = 15.0
_ASKED_AT_ONCE = 100
_GOES_ON = "What was recorded stays; start it again and it goes on from there."
_CRASHED = f"The processes of this run are gone: they were killed, or the machine went down. {_GOES_ON}"
_CANCELLED = f"Cancelled; its processes had gone before. {_GOES_ON}"
_UNDER_WAY = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING, StateType.PAUSED)

_log = logging.getLogger("prefect.overnight")


@contextmanager
def looking_after_orphans(claims: Claims) -> Iterator[None]:
    """Look now, and again every few seconds inside the block."""
    _try_to_look(claims)
    ending = threading.Event()

    def keep_looking() -> None:
        while not ending.wait(_LOOK_SECONDS):
            _try_to_look(claims)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(keep_looking,), name="orphans", daemon=True).start()
    try:
        yield
    finally:
        ending.set()


def _try_to_look(claims: Claims) -> None:
    try:
        look_after_orphans(claims)
    except (*SERVER_ERRORS, NoSuchProcess) as error:  # the next look will tell
        _log.debug("Could not look after orphaned runs: %s", error)


def look_after_orphans(claims: Claims) -> None:
    """End in the server what has ended here, pass cancellations on to what lives, and forget claims that are
    settled.
    """
    left = claims.left_behind()
    if not left:
        return
    # Before the server is asked: what ends of itself meanwhile has told the server so by then.
    engines = living_engines()
    with get_client(sync_client=True) as client:
        for run in _known(client, list(left)):
            cancelling = run.state is not None and run.state.is_cancelling()
            ended: State[Any] = Cancelled(message=_CANCELLED) if cancelling else Crashed(message=_CRASHED)
            if run.id not in engines:
                _settle(client, run, ended)
                left[run.id].unlink(missing_ok=True)
            elif cancelling:
                engines[run.id].terminate()


def _known(client: SyncPrefectClient, run_ids: list[UUID]) -> Iterator[FlowRun]:
    """Those of the runs that this server knows."""
    for start in range(0, len(run_ids), _ASKED_AT_ONCE):
        some = run_ids[start : start + _ASKED_AT_ONCE]
        yield from client.read_flow_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=some)), limit=len(some)
        )


def _settle(client: SyncPrefectClient, run: FlowRun, ended: State[Any]) -> None:
    """Give a run that nobody works on its last state, unless it has one; its task runs too."""
    if run.state is None or run.state.type not in _UNDER_WAY:
        return
    chosen = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
    for task_run in client.read_task_runs(flow_run_filter=chosen):
        if task_run.state is None or task_run.state.type in _UNDER_WAY:
            client.set_task_run_state(task_run.id, ended, force=True)
    client.set_flow_run_state(run.id, ended, force=True)
    _stop_the_clock(client, run.id)
    _log.info("Flow run %r is shown as %s: its processes are gone.", run.name, ended.name)


def _stop_the_clock(client: SyncPrefectClient, run_id: UUID) -> None:
    """What its progress says last is no rate and no time left."""
    mine = ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]), type=ArtifactFilterType(any_=["progress"])
    )
    for artifact in client.read_artifacts(artifact_filter=mine):
        done = (artifact.description or "").partition(", ")[0]
        told = f"{done}; then its processes were gone"
        client.update_artifact(artifact.id, ArtifactUpdate(description=told))
