"""A temporary Prefect server, for a flow that is started by hand where no server is set.

Prefect would start one by itself, but in this terminal's process group, where Ctrl-C ends it before the flow
could report how it stopped (the client then waits for it for minutes), and with our standard error, into
which its background services write tracebacks at ERROR level that concern nobody: failed telemetry, "database
is locked", connections cancelled at its end. Ours has a session and a log file of its own, sends no
telemetry, and ends with us.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, get_current_settings, temporary_settings

from pipeline.errors import OvernightError
from pipeline.system.child_python import command_of, environment

# Measured 5 to 15 s on two idle cores; Prefect's own limit of 20 s is too tight on a busy machine.
_STARTUP_SECONDS = 180
_GRACE_SECONDS = 5


def start_temporary_server() -> str:
    """Start a server and make it the one this process talks to, to its end. Returns the API's address; raises
    OvernightError.
    """
    stack = ExitStack()
    # Registered before Prefect registers that it sends its last events and logs, so called after that.
    atexit.register(stack.close)
    log = Path(PREFECT_HOME.value()) / "temporary-server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    address = f"http://127.0.0.1:{port}/api"
    print("Starting a temporary Prefect server (`overnight run` needs none) …", file=sys.stderr, flush=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command_of("flows.server"), str(port)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=_environment(),
        )
    stack.callback(_end, process)
    _wait_until_healthy(process, address, log)
    stack.enter_context(temporary_settings({PREFECT_API_URL: address}))
    logging.getLogger("prefect.flow_runs").addFilter(_no_link)
    return address


def _no_link(record: logging.LogRecord) -> bool:
    """Not "View at http://…": this server has no UI."""
    return not str(record.msg).startswith("View at")


def _environment() -> dict[str, str]:
    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    return {**environment(), **settings, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}


def _wait_until_healthy(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + _STARTUP_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise OvernightError(
                f"the temporary Prefect server ended with exit code {process.returncode}; its log is {log}"
            )
        try:
            if httpx.get(f"{address}/health", timeout=5).is_success:
                return
        except httpx.TransportError:
            pass  # not yet
        time.sleep(0.1)
    raise OvernightError(
        f"the temporary Prefect server did not come up within {_STARTUP_SECONDS} s; its log is {log}"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin:
        process.stdin.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    """The server's process: serve on the port given until told to stop, or until whoever started it is
    gone.
    """
    import uvicorn
    from prefect.server.api.server import create_app

    threading.Thread(target=_stop_with_parent, daemon=True).start()
    uvicorn.run(
        create_app(ephemeral=True, final=True), host="127.0.0.1", port=int(sys.argv[1]), log_level="error"
    )


def _stop_with_parent() -> None:
    # Empty at its end, which comes when the starter dies, however that happens. Not through sys.stdin: a
    # thread that waits in there holds a lock over which the interpreter aborts when the server ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
