"""The program started without the seconds that its imports take: a process that has imported everything
forks, and the fork is the program.

What is started is a real process: its own session, folder, environment and open files, a real exit code, to
be killed at any moment; only ``exec`` and the imports are saved. The worker that such a program starts is
forked from it, as its child. Where the environment says something that is read while Python or a library
starts, and the forking process was started with something else, the program is started anew, as it always is
with ``FRESH``.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.forked import module_of, receive_exactly

ROOT = Path(__file__).parents[1]
BOOT = ROOT / "tests" / "pretend_card" / "boot"
PRETENDS = "PRETEND_CARD"  # see tests/pretend_card; decided once in a process, the cards' size may change
FRESH = "OVERNIGHT_TESTS_FRESH"  # set to anything: every program is started anew
_READ_AT_START = (
    "PYTHON",
    "LC_",
    "LANG",
    "LD_",
    "MALLOC_",
    "OMP_",
    "MKL_",
    "HF_",
    "XDG_",
    "HOME",
    "PREFECT_",
)


class Program(subprocess.Popen[str]):
    """A ``Popen`` of ``python -P -m module ...`` that is forked from an importer when it may be."""

    _status: socket.socket | None = None
    _ended: tuple[int, int] | None = None

    # private in the standard library, and the one place where a process is made
    def _execute_child(self, *given: Any) -> None:
        args, executable, preexec, _close, pass_fds, cwd, env, *_rest = given
        pipes, session = given[10:16], given[21]
        found = module_of(args)
        if found is None or executable or preexec or pass_fds or not _may_fork(env):
            super()._execute_child(*given)  # type: ignore[misc]  # not in the stubs
            return
        childs = (pipes[0], pipes[3], pipes[5])
        descriptors = [own if fd == -1 else fd for fd, own in zip(childs, (0, 1, 2), strict=True)]
        order = {
            "module": found[0],
            "argv": found[1],
            "env": dict(env),
            "cwd": os.fspath(cwd or Path.cwd()),
            "session": bool(session),
        }
        self._status, self.pid = _importer().fork(order, descriptors)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # not in the stubs

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status is None:
            found: tuple[int, int] = super()._try_wait(wait_flags)  # type: ignore[misc]
            return found
        if self._ended is None:
            if not select.select([self._status], [], [], 0 if wait_flags & os.WNOHANG else None)[0]:
                return 0, 0
            told = receive_exactly(self._status, 4)
            self._status.close()
            self._ended = self.pid, int.from_bytes(told, "little") if told else 9
        return self._ended

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._status is None:
            code: int | None = super()._internal_poll(*given, **named)  # type: ignore[misc]
            return code
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def overnight(*arguments: str, code: int = 0, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command line with these arguments, to its end, which must be ``code``."""
    with Program(
        [sys.executable, "-P", "-m", "pipeline.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
        cwd=cwd,
        start_new_session=True,
    ) as process:
        out, err = process.communicate(timeout=250)
    assert process.returncode == code, err
    return subprocess.CompletedProcess(process.args, code, out, err)


def python_path(environment: Mapping[str, str]) -> str:
    """Where a process of this environment finds the program, and its graphics cards if it pretends to have
    some.
    """
    return f"{BOOT}{os.pathsep}{ROOT}" if PRETENDS in environment else str(ROOT)


class _Importer:
    """The process that has imported everything. It ends when its socket does, with this process."""

    def __init__(self) -> None:
        self.environment = _environment()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.forked", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=self.environment,
            )

    def fork(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[socket.socket, int]:
        """Have it fork into ``order``; where its end will be told, and its process id."""
        status, theirs = socket.socketpair()
        with theirs:
            message = json.dumps(order).encode()
            socket.send_fds(
                self._socket, [len(message).to_bytes(4, "little")], [*descriptors, theirs.fileno()]
            )
            self._socket.sendall(message)
        return status, int.from_bytes(receive_exactly(status, 4), "little")


@cache
def _importer() -> _Importer:
    return _Importer()


def _environment() -> dict[str, str]:
    """As nights start their programs (``tests/nights.py``)."""
    return {**os.environ, "PYTHONPATH": python_path(os.environ), "HF_HUB_OFFLINE": "1"}


def _may_fork(env: Mapping[str, str] | None) -> bool:
    if env is None or FRESH in env or FRESH in os.environ or sys.platform != "linux":
        return False
    ours = _importer().environment
    if (PRETENDS in ours) != (PRETENDS in env):
        return False
    return all(ours.get(name) == env.get(name) for name in {*ours, *env} if name.startswith(_READ_AT_START))
