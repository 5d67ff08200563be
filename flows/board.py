"""What the Prefect UI shows of a night: a progress artifact while it goes on, log lines, the report at its
end.

All of it is best effort. The run only leaves its latest progress here; a thread of its own talks to the
server, so a server that is slow or gone neither slows nor stops the run. Outside a flow run nothing is shown
and nothing is sent.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self
from uuid import UUID

import httpx
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from pipeline.cli.progress import facts
from pipeline.records import Progress
from pipeline.system.units import duration

_Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
_SEND_SECONDS = 5.0
_LOG_SECONDS = 120.0
_FAREWELL_SECONDS = 3.0
_PUBLISH_SECONDS = 15.0
# Far below what the server's database and the UI take; the whole report lies in the run directory anyway.
_REPORT_CHARACTERS = 200_000

SERVER_ERRORS = (httpx.HTTPError, PrefectException, OSError, RuntimeError)
"""What talking to a server that is gone, or came up wrong, raises (httpx says RuntimeError for a client that
was closed).
"""


def in_flow_run() -> bool:
    """Whether Prefect runs this."""
    return FlowRunContext.get() is not None


def is_served() -> bool:
    """Whether this flow run was started by a deployment's serving process rather than by hand."""
    context = FlowRunContext.get()
    return context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None


def is_being_cancelled() -> bool:
    """Whether somebody cancels this flow run, as far as the server can tell."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return False
    try:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
            state = get_client(sync_client=True).read_flow_run(context.flow_run.id).state
    except SERVER_ERRORS:
        return False
    return state is not None and state.is_cancelling()


class Board:
    """An observer for ``pipeline.run.runner.run``; a context manager around it."""

    def __init__(
        self, kind: str, send_seconds: float = _SEND_SECONDS, log_seconds: float = _LOG_SECONDS
    ) -> None:
        self._kind = kind
        self._send_seconds = send_seconds
        self._log_seconds = log_seconds
        self._log: _Log = get_run_logger() if in_flow_run() else logging.getLogger(__name__)
        self._latest = Progress("reading")
        self._news = threading.Event()
        self._closing = threading.Event()
        self._artifact: UUID | None = None
        self._complained = False
        self._heard = self._logged = time.monotonic()
        self._logging = threading.Lock()
        self._stage = ""
        context = contextvars.copy_context()  # the thread sends in the name of this task run
        self._thread = threading.Thread(
            target=context.run, args=(self._keep_up,), name="progress", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._news.set()
        self._thread.join(_FAREWELL_SECONDS)

    def __call__(self, progress: Progress) -> None:
        """Note where the run is. Returns at once."""
        if progress.stage != "reporting" or not self._latest.total:  # what was done stays on the board
            self._latest = progress
        self._heard = time.monotonic()
        self._news.set()
        begun, self._stage = progress.stage != self._stage, progress.stage
        self._say(progress, 0 if begun else self._log_seconds)

    def _keep_up(self) -> None:
        """Send what is new, and say now and then where the run is even if it has nothing new to tell."""
        while not self._closing.is_set():
            if self._news.wait(self._log_seconds / 4) and not self._closing.is_set():
                self._news.clear()
                self._try_to_send(self._latest)
                self._closing.wait(self._send_seconds)
            self._say(self._latest, self._log_seconds)
        self._try_to_send(at_rest(self._latest))

    def _say(self, progress: Progress, silent_seconds: float) -> None:
        """A line in the log, unless one was written so lately."""
        with self._logging:
            now = time.monotonic()
            if now - self._logged < silent_seconds:
                return
            self._logged = now
        quiet = now - self._heard
        since = f" (nothing new for {duration(round(quiet))})" if quiet >= self._log_seconds / 2 else ""
        self._log.info("%s%s", describe(self._kind, progress.after(quiet)), since)

    def _try_to_send(self, progress: Progress) -> None:
        if not in_flow_run():
            return
        try:
            self._send(percent(progress), describe(self._kind, progress))
        except SERVER_ERRORS as error:
            if not (self._complained or self._closing.is_set()):
                self._log.warning(
                    "The Prefect server does not take the run's progress (%s). The run goes on without "
                    "showing it.",
                    error,
                )
            self._complained = True

    def _send(self, share: float, text: str) -> None:
        if self._artifact is None:
            artifact = create_progress_artifact(share, key=f"{self._kind}-progress", description=text)
            assert isinstance(artifact, UUID)  # a coroutine only where an event loop runs
            self._artifact = artifact
        else:
            update_progress_artifact(self._artifact, share, description=text)


def percent(progress: Progress) -> float:
    """0 to 100. A run that comes to its report without any work had none left."""
    if progress.total:
        return 100.0 * progress.behind
    return 100.0 if progress.stage == "reporting" else 0.0


def describe(kind: str, progress: Progress) -> str:
    """``summarize: 12 of 60 done, 1 failed, 310 tokens/s, 5 min left``."""
    if progress.stage == "working":
        known = [f"{progress.done:,} of {progress.total:,} done", facts(progress)]
        return f"{kind}: " + ", ".join(filter(None, known))
    return f"{kind}: {progress.message or progress.stage}"


def at_rest(progress: Progress) -> Progress:
    """The same where nothing goes on any more: no rate, no time left."""
    return replace(progress, tokens_per_second=0.0, eta_seconds=None)


def publish(kind: str, reports: Mapping[str, str]) -> bool:
    """Show the reports on tasks of this kind, in Markdown and by their names, as an artifact each. Whether
    the server took them.
    """
    if not in_flow_run():
        return False

    def send() -> None:
        for task, markdown in reports.items():
            key = f"{kind}-report" if len(reports) == 1 else f"{kind}-report-{_slug(task)}"
            create_markdown_artifact(_shortened(markdown), key=key, description=f"Report on {task}")

    return _within(_PUBLISH_SECONDS, send, get_run_logger())


def _slug(name: str) -> str:
    """As keys of artifacts are spelled."""
    return name.lower().replace("_", "-")


def _shortened(markdown: str) -> str:
    if len(markdown) <= _REPORT_CHARACTERS:
        return markdown
    return markdown[:_REPORT_CHARACTERS] + "\n\n… (the whole report is in the run directory)\n"


def _within(seconds: float, send: Callable[[], Any], log: _Log) -> bool:
    """Call ``send`` in a thread and give up waiting after ``seconds``: the client's own retries may take
    minutes.
    """
    problems: list[str] = ["no answer"]

    def attempt() -> None:
        try:
            send()
            problems.clear()
        except SERVER_ERRORS as error:
            problems[:] = [str(error) or type(error).__name__]

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(attempt,), name="publish", daemon=True
    )
    thread.start()
    thread.join(seconds)
    if problems:
        log.warning(
            "The Prefect server does not take the report (%s). It lies in the run directory.", problems[0]
        )
    return not problems
