"""The process that holds the model: reads requests from standard input, works them off, writes what finished
to standard output.

Its first message is the configuration: it imports its libraries and reads the tokenizer while the runner
makes the plan, which is the second message and makes it load the weights. Requests follow. Started by
``pipeline.run.worker_process``; it ends when its input ends, so it never outlives the runner. Only messages
go to the pipe: whatever libraries print is sent to standard error, which the runner keeps in a log.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import IO

from pipeline.errors import EXIT_FAULT, DeviceLost, OvernightError
from pipeline.run.protocol import (
    DeviceFailed,
    Finish,
    FromWorker,
    MalformedMessage,
    Refused,
    ToWorker,
    decode_to_worker,
    read_payload,
    write_message,
)
from pipeline.run.worker_service import LoadedModel, configured, loaded

_PR_SET_PDEATHSIG = 1
_log = logging.getLogger(__name__)


def main() -> None:
    """Serve one runner until its end of the pipe closes."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's to handle
    outbox = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    # Neither sys.stdin nor any stream with a buffer: a thread that reads from one holds its lock, and an
    # interpreter that ends meanwhile aborts over it (_enter_buffered_busy).
    inbox = _listen(os.fdopen(os.dup(0), "rb", buffering=0))

    def tell(message: FromWorker) -> None:
        write_message(outbox, message)

    try:
        backend = configured(inbox.get())
        model = loaded(backend, inbox.get(), tell)
    except DeviceLost as error:
        tell(DeviceFailed(str(error)))
        return
    except OvernightError as error:
        tell(Refused(type(error).__name__, str(error)))
        return
    _serve(model, inbox)
    model.close()


def _serve(model: LoadedModel, inbox: queue.Queue[ToWorker]) -> None:
    """Work off what comes until it is told that this was all."""
    while True:
        while model.idle or not inbox.empty():
            since = time.monotonic()
            message = inbox.get()
            model.waited(time.monotonic() - since)
            if isinstance(message, Finish):
                return
            model.take(message)
        model.step()


def _listen(stream: IO[bytes]) -> queue.Queue[ToWorker]:
    """A thread that reads messages while the model computes; the end of the stream ends the process at once,
    and so does what is no message.
    """
    inbox: queue.Queue[ToWorker] = queue.Queue()

    def read() -> None:
        try:
            while (payload := read_payload(stream)) is not None:
                inbox.put(decode_to_worker(payload))
        except MalformedMessage as error:
            _log.error("%s", error)
            os._exit(EXIT_FAULT)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return inbox


def _die_with_parent() -> None:
    """On Linux, ask the kernel for SIGKILL when the runner dies, even in the middle of a long kernel call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_at_once() -> None:
    """Run ``main`` and end without the interpreter's own end, which other threads (the one that listens, the
    store's writer, the libraries') may survive only by aborting: what there is to finish is finished.
    """
    code = 0
    try:
        main()
    except BaseException:  # noqa: BLE001  # as the interpreter would: shown, and the process ends
        traceback.print_exc()
        code = EXIT_FAULT
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    _end_at_once()
