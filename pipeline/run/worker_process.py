"""The runner's side of the worker: start it, feed it, notice when it dies or hangs, end it."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pipeline import errors
from pipeline.config import Config
from pipeline.errors import OvernightError, WorkerDied
from pipeline.records import Generation, Plan, Request, unpack_generation
from pipeline.run.protocol import pack_request, read_message, write_message
from pipeline.run.worker_main import pack_plan

_GRACE_SECONDS = 5
_FINISH_SECONDS = 90  # for what is still to be written to the KV store


class WorkerProcess:
    """A worker in a process of its own session, so that neither Ctrl-C nor a crash of the model reaches the
    runner.

    Of ``served_seconds`` since its model was loaded it has spent ``waited_seconds`` waiting for requests, as
    of its last replies; ``peak_bytes`` is the most it has held by then, in RAM and on graphics cards.
    """

    def __init__(self, config: Config, log: Path) -> None:
        self.facts: Mapping[str, Any] = {}
        self.waited_seconds = self.served_seconds = 0.0
        self.peak_bytes: tuple[int, int] = (0, 0)
        self.store_facts: Mapping[str, Any] = {}
        self._stall_seconds = config.engine.stall_seconds
        self._started: set[int] = set()
        self._owed: set[int] = set()
        self._last_sign = time.monotonic()
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with os.fdopen(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pipeline.run.worker_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                env=_environment(config),
            )
        threading.Thread(target=self._read, daemon=True).start()
        self._send({"config": config.model_dump(mode="json")})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    @property
    def started(self) -> Collection[int]:
        """Requests that the worker said it was computing and has not answered."""
        return self._started

    def load(self, plan: Plan, offload_folder: Path) -> None:
        """Have it load the model. Raises WorkerDied."""
        self._last_sign = time.monotonic()  # until now it had nothing to say
        self._send({"plan": pack_plan(plan), "offload_folder": str(offload_folder)})

    def loaded(self, timeout_seconds: float, say: Callable[[str], None]) -> bool:
        """Whether the model is loaded, after at most so long; ``say`` hears what happens. Raises WorkerDied,
        or what it refused with.
        """
        message = self._next(timeout_seconds)
        if message is None:
            self._kill_if_silent()
            return False
        self._last_sign = time.monotonic()
        if "says" in message:
            say(message["says"])
        if "refused" in message:
            name, text = message["refused"]
            kind = getattr(errors, name, OvernightError)
            raise kind(text)
        self.facts = message.get("loaded", {})
        return "loaded" in message

    def admit(self, requests: Sequence[Request]) -> None:
        """Hand over requests. Raises WorkerDied."""
        if not requests:
            return
        if not self._owed:
            self._last_sign = time.monotonic()  # it owed us nothing until now
        self._owed.update(request.request_id for request in requests)
        self._send({"admit": [pack_request(request) for request in requests]})

    def release(self, request_ids: Sequence[int]) -> None:
        """Tell the worker that nobody waits for these any more. Raises WorkerDied."""
        if request_ids:
            self._owed.difference_update(request_ids)
            self._send({"release": list(request_ids)})

    def collect(self, timeout_seconds: float) -> list[Generation]:
        """What finished since the last call, waiting at most so long for something.

        Raises WorkerDied; a worker that owes answers and has been silent for ``stall_seconds`` is killed and
        counts as dead.


        """
        finished: list[Generation] = []
        message = self._next(timeout_seconds)
        while message is not None:
            self._last_sign = time.monotonic()
            self._started.update(message.get("started", ()))
            finished += [unpack_generation(packed) for packed in message.get("replies", ())]
            self.store_facts = message.get("store", self.store_facts)
            self.waited_seconds, self.served_seconds = message.get(
                "waiting", (self.waited_seconds, self.served_seconds)
            )
            self.peak_bytes = tuple(message.get("peaks", self.peak_bytes))
            try:
                message = self._next(0)
            except WorkerDied:
                if not finished:
                    raise
                break  # what it finished counts; the next call says that it died
        for generation in finished:
            self._owed.discard(generation.request_id)
            self._started.discard(generation.request_id)
        if not finished and self._owed:
            self._kill_if_silent()
        return finished

    def _kill_if_silent(self) -> None:
        if time.monotonic() - self._last_sign > self._stall_seconds:
            self.kill()
            raise WorkerDied(
                f"the worker made no progress for {self._stall_seconds:.0f} s and was stopped "
                f"(engine.stall_seconds)"
            )

    def close(self) -> None:
        """End the worker, which must be idle: let it finish what it writes, close its input, and kill it if
        it lingers.
        """
        with contextlib.suppress(WorkerDied):
            self._send({"finish": True})
            self._finish()
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # it died first
                self._process.stdin.close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _finish(self) -> None:
        """Hear its last words. Raises WorkerDied when it has ended."""
        until = time.monotonic() + _FINISH_SECONDS
        while (left_seconds := until - time.monotonic()) > 0:
            message = self._next(left_seconds)
            self.store_facts = (message or {}).get("store", self.store_facts)

    def kill(self) -> None:
        """End the worker now, with what it is doing."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin:
            with contextlib.suppress(OSError):  # what it has not read is lost with it
                self._process.stdin.close()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            write_message(self._process.stdin, message)
        except (BrokenPipeError, ValueError):
            raise WorkerDied(self._death()) from None

    def _next(self, timeout_seconds: float) -> dict[str, Any] | None:
        try:
            message = (
                self._messages.get(timeout=timeout_seconds)
                if timeout_seconds
                else self._messages.get_nowait()
            )
        except queue.Empty:
            return None
        if message is None:
            self._messages.put(None)  # every later call finds the same end
            raise WorkerDied(self._death())
        return message

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            while (message := read_message(stream)) is not None:
                self._messages.put(message)
        self._messages.put(None)

    def _death(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"the worker ended with exit code {code}; its last words are in worker.log"
        name = signal.Signals(-code).name
        hint = "; most likely the system ran out of memory" if name == "SIGKILL" else ""
        return f"the worker was ended by {name}{hint}"


def _environment(config: Config) -> dict[str, str]:
    # With -P the worker never imports from the folder it is started in; where this program itself was found
    # is told instead.
    places = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))
    return {
        # threads that spin while they wait slow each other down on a shared machine: 1.8 times under load
        "OMP_WAIT_POLICY": "PASSIVE",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "OMP_NUM_THREADS": str(config.engine.threads or os.cpu_count() or 1),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
