"""The process that holds the model: reads requests from standard input, works them off, writes what finished
to standard output.

Its first message is the configuration: it imports its libraries and reads the tokenizer while the runner
makes the plan, which is the second message and makes it load the weights. Requests follow. Started by
``pipeline.run.worker_process``; it ends when its input ends, so it never outlives the runner. Only messages
go to the pipe: whatever libraries print is sent to standard error, which the runner keeps in a log.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.config import parse_config
from pipeline.engine.interface import Backend, Engine
from pipeline.engine.registry import open_backend
from pipeline.errors import OvernightError
from pipeline.records import Plan, Streaming, pack_generation
from pipeline.run.protocol import read_message, unpack_request, write_message
from pipeline.system.atomic_write import failing_disk_stops
from pipeline.system.process_memory import peak_card_bytes, peak_resident_bytes, resident_bytes

_PULSE_SECONDS = 1.0
_STORE_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


class _Reporter:
    """The engine's listener: tells the runner what started, and now and then that the engine is alive."""

    def __init__(self, outbox: BinaryIO) -> None:
        self._outbox = outbox
        self._last = time.monotonic()

    def started(self, request_ids: Sequence[int]) -> None:
        write_message(self._outbox, {"started": list(request_ids)})

    def pulse(self) -> None:
        if time.monotonic() - self._last >= _PULSE_SECONDS:
            self._last = time.monotonic()
            write_message(self._outbox, {"pulse": True})


def main() -> None:
    """Serve one runner until its end of the pipe closes."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's to handle
    outbox = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    inbox = _listen(sys.stdin.buffer)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    # one line, used twice
    say: Callable[[str], None] = lambda text: write_message(outbox, {"says": text})  # noqa: E731
    try:
        backend = open_backend(parse_config(inbox.get()["config"]))
        backend.tokenizer()
        order = inbox.get()
        offload_folder = Path(order["offload_folder"])
        before_bytes = resident_bytes()
        with failing_disk_stops(offload_folder):
            engine, facts = backend.open_engine(_plan(order["plan"]), offload_folder, say)
    except OvernightError as error:
        write_message(outbox, {"refused": [type(error).__name__, str(error)]})
        return
    engine.listener = _Reporter(outbox)
    write_message(outbox, {"loaded": {**facts, "process_bytes": before_bytes}})
    _serve(engine, backend, inbox, outbox)
    write_message(outbox, {"store": dict(backend.store_facts(close=True))})


def _serve(engine: Engine, backend: Backend, inbox: queue.Queue[dict[str, Any]], outbox: BinaryIO) -> None:
    """Work off what comes until it is told that this was all. Each message of replies tells how long the
    model has waited for requests since it was loaded, the most memory that was held, and now and then what
    became of persisted caches.
    """
    told = time.monotonic()
    loaded, waited_seconds = time.monotonic(), 0.0
    while True:
        while engine.idle or not inbox.empty():
            since = time.monotonic()
            message = inbox.get()
            waited_seconds += time.monotonic() - since
            if "finish" in message:
                return
            engine.admit([unpack_request(packed) for packed in message.get("admit", ())])
            engine.release(message.get("release", ()))
        finished = engine.step()
        if finished:
            waiting = [waited_seconds, time.monotonic() - loaded]
            news: dict[str, Any] = {"replies": list(map(pack_generation, finished)), "waiting": waiting}
            news["peaks"] = [peak_resident_bytes(), peak_card_bytes()]
            if time.monotonic() - told >= _STORE_SECONDS:
                told, news["store"] = time.monotonic(), dict(backend.store_facts())
            write_message(outbox, news)


def _listen(stream: BinaryIO) -> queue.Queue[dict[str, Any]]:
    """A thread that reads messages while the model computes; the end of the stream ends the process at
    once.
    """
    inbox: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        while (message := read_message(stream)) is not None:
            inbox.put(message)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return inbox


def _die_with_parent() -> None:
    """On Linux, ask the kernel for SIGKILL when the runner dies, even in the middle of a long kernel call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _plan(packed: dict[str, Any]) -> Plan:
    streaming = packed["streaming"]
    return Plan(
        **{**packed, "streaming": streaming and Streaming(**streaming), "reasons": tuple(packed["reasons"])}
    )


def pack_plan(plan: Plan) -> dict[str, Any]:
    """A plan as plain values, for the first message."""
    return dataclasses.asdict(plan)


if __name__ == "__main__":
    main()
