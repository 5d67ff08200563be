"""Commands about a run that is going on: status, once or as long as it lasts, and stop. Thin, and without an
import that takes time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.commands import Commands
from pipeline.cli.common import AsJson, RunPath, open_ledger, print_facts
from pipeline.errors import UsageError

if TYPE_CHECKING:
    from pipeline.results.run_state import RunState
    from pipeline.stores.ledger.ledger import Ledger

_LOOK_SECONDS = 1.0
_LINE_SECONDS = 5.0
_WAIT_SECONDS = 0.2


def status(
    directory: RunPath,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Go on until the run ends; with --json one object a line, at each change."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count documents and states, and tell whether a run is going on, where it is, and how long it will
    take.
    """
    with open_ledger(directory) as ledger:
        if not follow:
            facts, state = _look(directory, ledger)
            print_facts(facts if as_json else None, _picture(facts, state))
        elif as_json:
            _follow_as_json(directory, ledger)
        else:
            _follow(directory, ledger)


def stop(directory: RunPath, as_json: AsJson = False) -> None:
    """Stop the run in a directory as Ctrl-C would, and wait for its end; the same command goes on with it
    later.
    """
    from pipeline.system.run_lock import RUN, RunLock

    lock = RunLock(directory)
    holder = lock.holder()
    if holder is None:
        with open_ledger(directory):
            raise UsageError(f"no run is going on in {directory}, so there is nothing to stop")
    if not holder.token or holder.command != RUN:
        raise UsageError(f"{directory} is in use by {holder.name}, which is no run that could be stopped")
    try:
        lock.ask_to_stop(holder)
    except OSError as error:
        raise UsageError(
            f"{holder.name}, cannot be asked to stop, because nothing can be written in {directory} "
            f"({error.strerror}); press Ctrl-C where it was started"
        ) from None
    print(f"asked {holder.name}, to stop; waiting for its end", file=sys.stderr, flush=True)
    while (now := lock.holder()) is not None and now.token == holder.token:
        time.sleep(_WAIT_SECONDS)
    facts, lines = _ended(directory)
    print_facts(facts if as_json else None, lines)


def add_watch_commands(app: Commands) -> None:
    """Give the program these commands."""
    for command in (status, stop):
        app.command()(command)


# ── status ──────────────────────────────────────────────────────────────────────────────────────────────────


def _look(directory: Path, ledger: Ledger) -> tuple[dict[str, Any], RunState]:
    from pipeline.results.run_state import run_state

    state = run_state(directory, ledger)
    return {**ledger.status().to_json(), "run": state.to_json()}, state


def _picture(facts: dict[str, Any], state: RunState) -> list[str]:
    return [*_counts(facts), state.sentence, *_doing(state)]


def _counts(facts: dict[str, Any]) -> list[str]:
    lines = [
        f"{facts['documents']:,} documents, {facts['rejected']:,} rejected, {facts['duplicates']:,} "
        f"repeated; " + ("complete" if facts["complete"] else "not complete")
    ]
    if "unreadable" in facts:
        lines.append(facts["unreadable"]["sentence"])
    for name, states in facts["tasks"].items():
        counted = ", ".join(f"{count:,} {state}" for state, count in states.items() if count)
        lines.append(f"{name}: {counted}")
    return lines


def _doing(state: RunState) -> list[str]:
    """Where the run that is alive is, as far as it has said."""
    from pipeline.cli.progress import where

    return [] if state.progress is None else [f"  {where(state.progress)}"]


def _states(directory: Path, ledger: Ledger) -> Iterator[tuple[dict[str, Any], RunState]]:
    """A look about once a second, the last one when no run is alive."""
    while True:
        facts, state = _look(directory, ledger)
        yield facts, state
        if not state.alive:
            return
        time.sleep(_LOOK_SECONDS)


def _follow_as_json(directory: Path, ledger: Ledger) -> None:
    before = None
    for facts, _ in _states(directory, ledger):
        if facts != before:
            print_facts(facts, [])
            sys.stdout.flush()
        before = facts


def _follow(directory: Path, ledger: Ledger) -> None:
    """A picture that is drawn anew on a terminal; a line now and then, and at each new phase, elsewhere."""
    with _screen() as draw:
        for facts, state in _states(directory, ledger):
            draw(facts, state)
    print("\n".join([*_counts(facts), state.sentence]))


@contextmanager
def _screen() -> Iterator[Any]:
    if not sys.stdout.isatty():
        yield _Lines()
        return
    from rich.live import Live
    from rich.text import Text

    with Live(transient=True, auto_refresh=False) as live:
        yield lambda facts, state: live.update(Text("\n".join(_picture(facts, state))), refresh=True)


class _Lines:
    """What a pipe gets: where the run is, at most once in ``_LINE_SECONDS`` and at each new phase."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._next = float("-inf")

    def __call__(self, _facts: dict[str, Any], state: RunState) -> None:
        phase = state.to_json()["phase"]
        if phase is None or (phase == self._phase and time.monotonic() < self._next):
            return
        self._phase, self._next = phase, time.monotonic() + _LINE_SECONDS
        told = _doing(state) or [state.sentence]
        print(f"{time.strftime('%H:%M:%S')} {told[0].strip()}", flush=True)


# ── stop ────────────────────────────────────────────────────────────────────────────────────────────────────


def _ended(directory: Path) -> tuple[dict[str, Any], list[str]]:
    """How the run that was asked to stop has ended."""
    from pipeline.system.run_directory import LEDGER

    if not (directory / LEDGER).exists():
        return {"stopped": True, "run": None}, ["stopped before it had begun"]
    with open_ledger(directory) as ledger:
        facts, state = _look(directory, ledger)
    return {"stopped": True, **facts}, [*_counts(facts), state.sentence]
