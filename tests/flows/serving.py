"""A real Prefect server and a real serving process, each in a process group of its own, for tests to use and
to kill.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from tests.nights import ANight

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]


def wait_for(what: Callable[[], Any], seconds: float = 90) -> Any:
    """The first true value of ``what``, looked at five times a second."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s")


def kill_group(process: subprocess.Popen[Any], number: int = signal.SIGKILL) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)
    process.wait(60)


@contextlib.contextmanager
def or_killed(process: subprocess.Popen[Any]) -> Iterator[None]:
    """What has not come up in time is not left behind for the tests after it."""
    try:
        yield
    except BaseException:
        kill_group(process)
        raise


@dataclass
class Server:
    """``prefect server start`` on a free port."""

    home: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PREFECT_HOME": str(self.home), "PREFECT_API_URL": self.api, "COLUMNS": "200"}

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "prefect",
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--no-ui",
        ]
        environment = {name: value for name, value in self.environment.items() if name != "PREFECT_API_URL"}
        with (self.home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=environment
            )
        with or_killed(self.process):
            wait_for(self._healthy, 180)

    def kill(self) -> None:
        if self.process is not None:
            kill_group(self.process)

    def ask(self, path: str, **body: Any) -> Any:
        """What the server answers to a request."""
        return self._answer("POST", path, json=body).json()

    def flow_run(self, run_id: str) -> Json:
        found: list[Json] = self.ask("flow_runs/filter", flow_runs={"id": {"any_": [run_id]}})
        return found[0]

    def state(self, run_id: str) -> tuple[str, str]:
        """(type, name) of the run's state."""
        state = self.flow_run(run_id)["state"]
        return state["type"], state["name"]

    def wait_ended(self, run_id: str, seconds: float = 90) -> tuple[str, str]:
        """The state in which the run ended."""
        final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        ended: tuple[str, str] = wait_for(
            lambda: state if (state := self.state(run_id))[0] in final else None, seconds
        )
        return ended

    def unfinished(self) -> list[Json]:
        """Flow runs, and task runs of any, that somebody is said to be working on."""
        states = {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}}
        found: list[Json] = self.ask("flow_runs/filter", flow_runs=states)
        return found + list(self.ask("task_runs/filter", task_runs=states))

    def cancel(self, run_id: str) -> None:
        """As the button in the UI does."""
        self.ask(f"flow_runs/{run_id}/set_state", state={"type": "CANCELLING"})

    def artifacts(self, run_id: str) -> dict[str, Json]:
        """The run's artifacts by key."""
        found: list[Json] = self.ask("artifacts/filter", artifacts={"flow_run_id": {"any_": [run_id]}})
        return {artifact["key"]: artifact for artifact in found}

    def forget(self) -> None:
        """What an earlier test has served, and its runs, of which some are left unfinished on purpose."""
        for kind in ("deployments", "task_runs", "flow_runs"):
            for known in self.ask(f"{kind}/filter"):
                self._answer("DELETE", f"{kind}/{known['id']}")

    def _answer(self, method: str, path: str, **body: Any) -> httpx.Response:
        """The answer to a request, which is repeated while the server's database is busy."""
        busy = httpx.codes.SERVICE_UNAVAILABLE
        response: httpx.Response = wait_for(
            lambda: (
                None
                if (said := httpx.request(method, f"{self.api}/{path}", timeout=30, **body)).status_code
                == busy
                else said
            )
        )
        return response.raise_for_status()

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{self.api}/health", timeout=5).is_success
        except httpx.TransportError:
            return False


@dataclass
class Serving:
    """``overnight serve`` for one night's configuration, started in the folder ``cwd``, with Prefect's home
    at ``home``, which may be relative to that.
    """

    server: Server
    night: ANight
    arguments: tuple[str, ...] = ("--cron", "none")
    cwd: Path = ROOT
    home: str | None = None  # of Prefect, if it is another one than the server's
    process: subprocess.Popen[bytes] = field(init=False)

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self._start = self.log.stat().st_size
            command = [sys.executable, "-P", "-m", "pipeline.cli.main", "serve", str(self.night.config)]
            self.process = subprocess.Popen(
                [*command, *self.arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self.environment,
                cwd=self.cwd,
            )
        with or_killed(self.process):
            wait_for(lambda: "Keep this process running" in self.output)
        return self

    def __exit__(self, *_: object) -> None:
        kill_group(self.process)

    @property
    def environment(self) -> dict[str, str]:
        own = {} if self.home is None else {"PREFECT_HOME": self.home}
        return {**self.night.environment, **self.server.environment, **own}

    @property
    def log(self) -> Path:
        return self.night.folder / "serve.log"

    @property
    def output(self) -> str:
        """What this serving process and its runs wrote."""
        return self.log.read_bytes()[self._start :].decode()

    def printed_commands(self) -> list[list[str]]:
        """The commands that it tells people to type."""
        return [
            line.split()
            for line in self.output.splitlines()
            if line.strip().startswith("prefect deployment run")
        ]

    def ask_for(self, kind: str, **parameters: Any) -> str:
        """A run of ``kind``, as the form in the UI asks for one; the flow run's id."""
        found = httpx.get(f"{self.server.api}/deployments/name/{kind}/overnight", timeout=30)
        run: Json = self.server.ask(
            f"deployments/{found.raise_for_status().json()['id']}/create_flow_run", parameters=parameters
        )
        return str(run["id"])

    def start(self, kind: str, *parameters: str) -> str:
        """Type the printed command for ``kind``; the flow run's id."""
        command = next(command for command in self.printed_commands() if f"{kind}/" in command[-1])
        options = [option for parameter in parameters for option in ("-p", parameter)]
        done = subprocess.run(
            [sys.executable, "-m", *command, *options],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = re.search(r"UUID: ([0-9a-f-]{36})", done.stdout)
        assert found, done.stdout
        return found[1]

    def wait_done(self, task: str, count: int) -> None:
        """Until the run directory holds ``count`` answers of ``task``."""
        wait_for(lambda: done_count(self.night, task) >= count)

    def die_after(self, task: str, count: int) -> None:
        """Be killed, alone and at once, when so many answers of ``task`` are there."""
        self.wait_done(task, count)
        self.process.kill()
        self.process.wait()


def a_project_of_its_own(folder: Path) -> Path:
    """A folder with packages that are called as ours are, and raise when they are imported."""
    for name in ("flows", "pipeline", "tests"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(
            f"raise ImportError('{name} of the user')", encoding="utf-8"
        )
    return folder


def done_count(night: ANight, task: str) -> int:
    """Answers recorded so far, read as anybody may while a run goes on."""
    from pipeline.errors import OvernightError
    from pipeline.stores.ledger.ledger import Ledger
    from pipeline.system.run_directory import LEDGER

    try:
        with Ledger.open(night.directory / LEDGER, write=False) as ledger:
            return int(ledger.status().to_json()["tasks"].get(task, {}).get("done", 0))
    except OvernightError:
        return 0  # not begun
