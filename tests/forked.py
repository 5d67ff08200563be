"""The process that ``tests/programs.py`` forks programs from: it imports everything, then waits for orders.

It never starts a thread nor computes anything, so that a fork of it is as good as a fresh start.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import logging
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

COMMANDS = ("pipeline.cli.main", "pipeline.run.worker_main", "tests.crash.reading")
_LIBRARIES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "pyarrow.parquet",
    "sqlalchemy",
    "numpy",
    "rich",
)
_LAZY = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer", "PreTrainedTokenizerFast")


def module_of(args: Any) -> tuple[str, list[str]] | None:
    """What ``python [-P] -m module argument ...`` runs, and on what, if it is one that may be forked."""
    if not isinstance(args, list | tuple) or args[0] != sys.executable:
        return None
    words = [os.fspath(word) for word in args[1:] if word != "-P"]
    return (words[1], words[2:]) if words[0] == "-m" and words[1] in COMMANDS else None


def receive_exactly(place: socket.socket, count: int) -> bytes:
    """``count`` bytes; fewer, or none, when the other side is gone."""
    found = b""
    while len(found) < count and (more := place.recv(count - len(found))):
        found += more
    return found


class _Worker(subprocess.Popen[Any]):
    """A ``Popen`` in a forked program, by which it starts its worker: a fork of itself, its child."""

    def _execute_child(self, *given: Any) -> None:
        args, env, pipes = given[0], given[6], given[10:16]
        found = module_of(args)
        if found is None:
            super()._execute_child(*given)  # type: ignore[misc]  # not in the stubs
            return
        childs = (pipes[0], pipes[3], pipes[5])
        gate, opened = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            _become(*found, env or dict(os.environ), None, True, childs, lambda: os.write(opened, b"."))
        self._child_created = True
        os.close(opened)
        os.read(gate, 1)  # until it stands in its own session
        os.close(gate)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # not in the stubs


def _become(
    module: str,
    argv: Sequence[str],
    env: dict[str, str],
    cwd: str | None,
    session: bool,
    descriptors: Sequence[int],
    ready: Callable[[], object],
) -> NoReturn:
    """This fork is from now on ``python -P -m module argv``, and ends with it."""
    code = 1
    try:
        if session:
            os.setsid()
        for number, fd in enumerate(descriptors):
            if fd not in (-1, number):
                os.dup2(fd, number)
        if cwd:
            os.chdir(cwd)
        _forget(env)
        ready()
        os.closerange(3, 1024)
        _open_standard_streams()
        program = sys.modules["__main__"] = importlib.import_module(module)
        sys.argv = [str(program.__file__), *argv]
        code = _run(module)
    except BaseException:  # noqa: BLE001  # as the interpreter would: shown, and the process ends
        traceback.print_exc()
    os._exit(code)


def _forget(env: dict[str, str]) -> None:
    """What this process was before it was forked: its environment, signals, exit handlers, log."""
    os.environ.clear()
    os.environ.update(env)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    gc.freeze()  # nothing of before is collected, which might close a file of the same number
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    subprocess.Popen = _Worker  # type: ignore[misc]
    if "tests.pretend_card.torch_cuda" in sys.modules:  # the cards of this environment
        sys.modules["tests.pretend_card.torch_cuda"].begin()


def _open_standard_streams() -> None:
    plain = bool(os.environ.get("PYTHONUNBUFFERED"))
    read = os.fdopen(0, "rb", closefd=False)
    out, err = (os.fdopen(fd, "wb", 0 if plain else -1, closefd=False) for fd in (1, 2))
    sys.stdin = io.TextIOWrapper(read, encoding="utf-8")
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=plain)
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _run(module: str) -> int:
    """Run it and do what the interpreter does at the end: wait for threads, run exit handlers, flush."""
    if module == "pipeline.run.worker_main" and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    code = 0
    try:
        sys.modules[module].main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  # as the interpreter would
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    return code


def _import_everything() -> None:
    for name in _LIBRARIES:
        importlib.import_module(name)
    library = importlib.import_module("transformers")
    for name in _LAZY:
        getattr(library, name)
    package = importlib.import_module("pipeline")
    for module in pkgutil.walk_packages(package.__path__, "pipeline."):
        importlib.import_module(module.name)
    with contextlib.suppress(Exception):  # where it is missing or broken the program says so itself
        importlib.import_module("pipeline.engine.model.library_logging").import_bitsandbytes()
    gc.collect()
    gc.freeze()


def _serve(orders: socket.socket) -> None:
    children: dict[int, socket.socket] = {}
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([orders, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _reap(children)
        if orders in ready:
            length, descriptors, _, _ = socket.recv_fds(orders, 4, 4)
            if not length:
                return
            order = json.loads(receive_exactly(orders, int.from_bytes(length, "little")))
            *standard, told = descriptors
            status = socket.socket(fileno=told)
            if not (pid := os.fork()):
                _become(
                    order["module"],
                    order["argv"],
                    order["env"],
                    order["cwd"],
                    order["session"],
                    standard,
                    lambda status=status: status.sendall(os.getpid().to_bytes(4, "little")),
                )
            children[pid] = status
            for fd in standard:
                os.close(fd)


def _reap(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with children.pop(pid) as place, contextlib.suppress(OSError):  # nobody may wait for it any more
            place.sendall(status.to_bytes(4, "little"))


if __name__ == "__main__":
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest; programs have a session of their own
    _import_everything()
    _serve(channel)
