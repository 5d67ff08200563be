"""What a run directory is about at this moment: whether a run is alive in it, by its lock, and what that one
does; else how the last one ended.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.records import Progress
from pipeline.stores.ledger.ledger import Ledger
from pipeline.system.run_lock import RUN, Holder, RunLock
from pipeline.system.units import duration, moment

PHASES = {
    "starting": "starting",
    "reading": "reading the sources",
    "loading": "loading the model",
    "working": "working",
    "reporting": "writing the report and the exports",
}
UNKNOWN = "a run is going on, or was cut off without a word"
"""Where only the ledger is known and not its place."""


@dataclass(frozen=True, slots=True)
class RunState:
    """``holder``: who holds the directory; None: nobody. ``last``: the latest run of the ledger, as the
    ledger has it; None before there was one.
    """

    holder: Holder | None
    last: Mapping[str, Any] | None

    @property
    def alive(self) -> bool:
        """Whether a run is going on."""
        return self.holder is not None and self.holder.command == RUN

    @property
    def cut_off(self) -> bool:
        """Whether the last run ended without a word: killed, or its machine went down."""
        return not self.alive and self.last is not None and self.last["ended_at"] is None

    @property
    def progress(self) -> Progress | None:
        """Where the run that is alive said it is; its time left is as of now."""
        if self.holder is None or not self.alive or not self.holder.doing:
            return None
        told = self.holder.doing
        known = Progress(**{name: told[name] for name in Progress.__dataclass_fields__ if name in told})
        return known.after(self._seconds_since_said())

    def _seconds_since_said(self) -> float:
        """By this machine's clock, which is not that of another one."""
        if self.holder is None or self.holder.host != socket.gethostname():
            return 0.0
        return max(0.0, time.time() - self.holder.said_at)

    def to_json(self) -> dict[str, Any]:
        """Plain values: the key ``run`` of ``overnight status --json``."""
        holder, progress, last = self.holder, self.progress, self.last
        return {
            "alive": self.alive,
            "cut_off": self.cut_off,
            "phase": None if not self.alive else "starting" if progress is None else progress.stage,
            "progress": None if progress is None else asdict(progress),
            "held_by": None
            if holder is None
            else {
                "command": holder.command if holder.token else None,
                "pid": holder.pid or None,
                "host": holder.host or None,
                "since": moment(holder.since) if holder.since else None,
            },
            "last": None
            if last is None
            else {
                "run": last["id"],
                "started": moment(last["started_at"]),
                "ended": None if last["ended_at"] is None else moment(last["ended_at"]),
                "exit_code": last["exit_code"],
                "reason": last["reason"],
            },
        }

    @property
    def sentence(self) -> str:
        """For people, in a line."""
        if self.alive:
            return self._of_the_living()
        if self.holder is not None:
            return f"no run is going on; {self.holder.name} holds the directory for a moment"
        if self.last is None:
            return "no run has begun its work here"
        if self.cut_off:
            return (
                f"no run is going on: the last one, of {moment(self.last['started_at'])}, was cut off "
                f"without a word (killed, or the machine went down); the same command goes on"
            )
        return (
            f"no run is going on; the last one ended at {moment(self.last['ended_at'])}: "
            f"{self.last['reason']} (exit code {self.last['exit_code']})"
        )

    def _of_the_living(self) -> str:
        assert self.holder is not None
        progress = self.progress
        phase = PHASES["starting" if progress is None else progress.stage]
        of = f" for {duration(time.time() - self.holder.since)}" if self.holder.since else ""
        return f"a run is going on{of} ({self.holder.name}): {phase}"


def run_state(directory: Path, ledger: Ledger) -> RunState:
    """Of a run directory."""
    holder = RunLock(directory).holder()  # before the ledger: a run that ends in between is not cut off
    runs = ledger.runs()
    return RunState(holder, runs[-1] if runs else None)
