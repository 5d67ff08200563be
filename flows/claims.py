"""Which flow runs the serving processes of this machine have taken, kept in files.

A run whose processes were killed tells its server nothing more, so the server shows it as running for ever.
Whether it lives can be told only where it ran: its serving process has left a claim to it, that process's
lock went with the process, and none of Prefect's engines here carries the run's id. A run that another
machine took has no claim here, so nobody here judges it.
"""

from __future__ import annotations

import logging
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psutil
from filelock import FileLock, Timeout
from prefect.settings import PREFECT_HOME

from pipeline.errors import StoppedEarly, UsageError
from pipeline.system.atomic_write import replace_file

_LOCK = "lock"
_CLAIM = "????????-????-????-????-????????????"
_ENGINE = "prefect.engine"
_RUN_ID = "PREFECT__FLOW_RUN_ID"
# Claims to runs of a server that was never asked again, or that has forgotten them.
_KEPT_SECONDS = 90 * 86_400

_log = logging.getLogger("prefect.overnight")


class Claims:
    """The flow runs that this serving process has taken, in a folder of its own beside those of the others of
    this machine.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, run_id: UUID) -> None:
        """Claim a run, durably. A disk that fails costs the claim, never the run."""
        try:
            with replace_file(self._folder / str(run_id), private=True):
                pass  # its name says it all
        except (OSError, StoppedEarly) as error:
            _log.warning("Should the flow run %s be killed, it will be shown as running: %s", run_id, error)

    def let_go(self, run_id: UUID) -> None:
        """Somebody else has the run."""
        (self._folder / str(run_id)).unlink(missing_ok=True)

    def left_behind(self) -> dict[UUID, Path]:
        """Claims of serving processes that are gone, by run; folders that hold none any more are removed."""
        left: dict[UUID, Path] = {}
        for folder in self._folder.parent.iterdir():
            if folder == self._folder or _is_held(folder):
                continue
            claims = {UUID(claim.name): claim for claim in folder.glob(_CLAIM) if not _is_old(claim)}
            if not claims:
                shutil.rmtree(folder, ignore_errors=True)
            left |= claims
        return left


@contextmanager
def claiming() -> Iterator[Claims]:
    """The claims of this process, held as long as it lives. Raises UsageError where they cannot be kept."""
    # a home may be shared by machines
    place = Path(PREFECT_HOME.value()) / "overnight" / socket.gethostname()
    folder = place / uuid4().hex
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise UsageError(
            f"the runs that are served here cannot be noted in {place}: {error.strerror}; make it writable, "
            f"or set PREFECT_HOME to a folder that is"
        ) from None
    with FileLock(folder / _LOCK, mode=0o600):
        yield Claims(folder)


def claim_before_taking(claims: Claims) -> None:
    """Make the serving process claim a run before it tells the server that it takes it. A Prefect that is
    built otherwise is left as it is, said out loud.
    """
    try:
        from prefect.runner._state_proposer import StateProposer

        propose = StateProposer.propose_pending
    except (ImportError, AttributeError):
        _log.warning(
            "This version of Prefect does not say which runs it takes: one that is killed will be shown as "
            "running."
        )
        return

    async def claim_and_propose(proposer: Any, flow_run: Any) -> bool:
        claims.take(flow_run.id)
        if taken := await propose(proposer, flow_run):
            return taken
        claims.let_go(flow_run.id)
        return False

    StateProposer.propose_pending = claim_and_propose  # type: ignore[method-assign,assignment]  # no hook


def living_engines() -> dict[UUID, psutil.Process]:
    """This user's processes on this machine that execute a flow run, by run."""
    return {
        UUID(environment[_RUN_ID]): process
        for process in psutil.process_iter(["cmdline", "environ"])
        if _ENGINE in (process.info["cmdline"] or ())
        and _RUN_ID in (environment := process.info["environ"] or {})
    }


def _is_held(folder: Path) -> bool:
    """Whether the process whose claims these are lives."""
    try:
        with FileLock(folder / _LOCK, timeout=0, mode=0o600):
            return False
    except Timeout:
        return True


def _is_old(claim: Path) -> bool:
    return time.time() - claim.stat().st_mtime > _KEPT_SECONDS
