"""Runs this folder's tests in a process that has cards: started once, told of one test after the other.

A process cannot be given cards once it has imported torch, and nothing else in a session shall see any.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.pretend_card.build import built
from tests.pretend_card.options import VARIABLE

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
BOOT = HERE / "boot"
# The process keeps to pytest's limits itself; it is given this longer, and is ended if it cannot end a test.
_GRACE_SECONDS = 300.0


def card_environment(cards: str = "8GiB", **options: str) -> dict[str, str]:
    """The environment of a process with pretended cards; ``options`` without their ``PRETEND_``."""
    asked = {f"PRETEND_{name.upper()}": value for name, value in options.items()}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRETEND_")}
    return {
        **kept,
        "PYTHONPATH": f"{BOOT}{os.pathsep}{ROOT}",
        "HF_HUB_OFFLINE": "1",
        VARIABLE: cards,
        **asked,
    }


class Ended(RuntimeError):
    """The process with the cards is gone; the message is the end of what it printed."""


class CardProcess:
    """A session of ``card_session.py`` over the tests in ``place``, and by default of this folder. Raises
    CannotBuild where there is no compiler.
    """

    def __init__(self, place: Path = HERE) -> None:
        built()
        self._socket, theirs = socket.socketpair()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process is
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *_ARGUMENTS, "--orders", str(theirs.fileno()), str(place)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=subprocess.STDOUT,
                env=_without_workers(card_environment()),
                cwd=ROOT,
            )
        self._lines = self._socket.makefile("rw")

    def run(
        self, item: str, following: str | None, limit_seconds: float, grace_seconds: float = _GRACE_SECONDS
    ) -> list[Any]:
        """Serialized reports of the test of this node id, which may take so long by pytest's own limit;
        ``following`` is run next. Raises Ended.
        """
        order = {"item": item, "next": following}
        with contextlib.suppress(OSError):
            print(json.dumps(order), file=self._lines, flush=True)
        if not select.select([self._socket], [], [], limit_seconds + grace_seconds)[0]:
            self._process.kill()
        try:
            line = self._lines.readline()
        except OSError:
            line = ""
        if not line:
            raise Ended(self._last_words())
        reports: list[Any] = json.loads(line)
        return reports

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
        self._process.wait(60)
        self._printed.close()

    def _last_words(self) -> str:
        code = self._process.wait(60)
        self._printed.seek(0)
        said = self._printed.read().decode(errors="replace")
        return f"the process with the cards ended with {code}:\n{said[-6000:]}"


# All tests are collected, whatever the session outside has chosen.
_ARGUMENTS = ("-P", "-m", "pytest", "-p", "tests.pretend_card.card_session", "-p", "no:cacheprovider")
_ARGUMENTS += ("-n", "0", "-o", "addopts=", "-q")


def _without_workers(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
