"""A worker in a process of this machine: start it, feed it, notice when it dies or hangs, end it."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.config import Config
from pipeline.errors import WorkerDied
from pipeline.records import Plan, Request
from pipeline.run.protocol import (
    Configure,
    Finish,
    FromWorker,
    MalformedMessage,
    Release,
    ToWorker,
    admission,
    decode_from_worker,
    encode,
    loading,
    read_payload,
    write_message,
)
from pipeline.run.worker import Held
from pipeline.system.child_python import command_of, environment

_GRACE_SECONDS = 5
_FINISH_SECONDS = 90  # for what is still to be written to the KV store


class WorkerProcess:
    """See pipeline.run.worker.Worker. The process has a session of its own, so that neither Ctrl-C nor a
    crash of the model reaches the runner.

    One that owes something and is silent for ``engine.stall_seconds`` is killed and counts as dead.
    """

    def __init__(
        self, config: Config, log: Path, offload_folder: Path, ring: Callable[[], None] = lambda: None
    ) -> None:
        self.held = Held()
        self._offload_folder = offload_folder
        self._ring = ring
        self._log_name = log.name
        self._stall_seconds = config.engine.stall_seconds
        self._last_sign = time.monotonic()
        self._complaint: str | None = None  # what it was ended for, if we ended it
        self._messages: queue.Queue[FromWorker | None] = queue.Queue()
        configure = Configure(config.model_dump())
        encode(configure)  # before there is a process: it may hold what cannot be sent
        with os.fdopen(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab") as stderr:
            self._process = subprocess.Popen(
                command_of("pipeline.run.worker_main"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,  # a thread reads: with a buffer it would hold a lock when the interpreter ends
                start_new_session=True,
                env=_environment(config),
            )
        threading.Thread(target=self._read, daemon=True).start()
        self._send(configure)

    def load(self, plan: Plan, proof: Sequence[Request] = ()) -> None:
        """See Worker."""
        self._last_sign = time.monotonic()  # until now it had nothing to say
        self.held.state = "loading"
        self._send(loading(plan, str(self._offload_folder), proof))

    def admit(self, requests: Sequence[Request]) -> None:
        """See Worker."""
        if not requests:
            return
        if not self.held.owes:
            self._last_sign = time.monotonic()
        self.held.lease(requests)
        self._send(admission(requests))

    def release(self, request_ids: Sequence[int]) -> None:
        """See Worker."""
        if request_ids:
            self.held.let_go(request_ids)
            self._send(Release(tuple(request_ids)))

    def collect(self) -> list[FromWorker]:
        """See Worker."""
        heard: list[FromWorker] = []
        while (message := self._next(0)) is not None:
            self.held.hear(message)
            heard.append(message)
        if heard:
            self._last_sign = time.monotonic()
        elif self._has_ended():
            raise WorkerDied(self._death())
        elif self.held.owes and time.monotonic() - self._last_sign > self._stall_seconds:
            self._end_for(
                f"the worker made no progress for {self._stall_seconds:.0f} s and was stopped "
                f"(engine.stall_seconds)"
            )
            raise WorkerDied(self._death())
        return heard

    def close(self, *, at_once: bool = False) -> None:
        """See Worker."""
        if not at_once and self.held.state == "loaded":
            self._finish()
        self._process.kill()
        self._process.wait()
        if self._process.stdin:
            with contextlib.suppress(OSError):  # what it has not read is lost with it
                self._process.stdin.close()

    def _finish(self) -> None:
        """Let it write what is still to be written, hear its last words, and give it time to end."""
        self._send(Finish())
        until = time.monotonic() + _FINISH_SECONDS
        while not self._has_ended() and (left_seconds := until - time.monotonic()) > 0:
            message = self._next(left_seconds)
            if message is not None:
                self.held.hear(message)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)

    def _send(self, message: ToWorker) -> None:
        """One that can be told nothing any more is dead, or will be: ``collect`` finds it."""
        assert self._process.stdin is not None
        try:
            write_message(self._process.stdin, message)
        except (OSError, ValueError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
            self._process.kill()

    def _next(self, timeout_seconds: float) -> FromWorker | None:
        """The next message; None when none comes in time, or none at all any more."""
        try:
            message = self._messages.get(timeout_seconds > 0, timeout_seconds)
        except queue.Empty:
            return None
        if message is None:
            self._messages.put(None)  # every later call finds the same end
        return message

    def _has_ended(self) -> bool:
        """Whether all that it said was heard and nothing more can come."""
        return self._messages.qsize() == 1 and self._messages.queue[0] is None

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            with self._process.stdout as stream:
                while (payload := read_payload(stream)) is not None:
                    self._messages.put(decode_from_worker(payload))
                    self._ring()
        except (MalformedMessage, OSError) as error:
            self._end_for(f"the worker was stopped, because what it sent cannot be read: {error}")
        self._messages.put(None)
        self._ring()

    def _end_for(self, complaint: str) -> None:
        self._complaint = complaint
        self._process.kill()

    def _death(self) -> str:
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:  # as of a driver that never comes back from being put down
            self._end_for(
                f"the worker stopped talking, did not end and was stopped; its last words are in "
                f"{self._log_name}"
            )
            code = self._process.wait()
        if self._complaint is not None:
            return self._complaint
        if code >= 0:
            return f"the worker ended with exit code {code}; its last words are in {self._log_name}"
        name = signal.Signals(-code).name
        hint = "; most likely the system ran out of memory" if name == "SIGKILL" else ""
        return f"the worker was ended by {name}{hint}"


def _environment(config: Config) -> dict[str, str]:
    return {
        # threads that spin while they wait slow each other down on a shared machine: 1.8 times under load
        "OMP_WAIT_POLICY": "PASSIVE",
        **environment(),
        "OMP_NUM_THREADS": str(config.engine.threads or os.cpu_count() or 1),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
