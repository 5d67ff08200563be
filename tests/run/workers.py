"""Scripted workers for tests: a configuration that needs no model, a plan, requests, how to start them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Config, parse_config
from pipeline.records import Decode, Plan, Request
from pipeline.run.in_process_worker import InProcessWorker
from pipeline.run.protocol import FromWorker
from pipeline.run.worker import Worker
from pipeline.run.worker_process import WorkerProcess
from tests.nights import SCRIPTED

PLAN = Plan("float32", "none", "device", "instructions_first", 600, 4, 4096, 512, 0)
Start = Callable[..., Worker]


def script(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """What the scripted model does in every worker that is started from now on."""
    monkeypatch.setenv("OVERNIGHT_SCRIPT", json.dumps(settings))


def configured(folder: Path, **engine: Any) -> Config:
    return parse_config(
        {
            "model": {"id": "scripted", "quantization": "none"},
            "source": {"path": str(folder / "in.jsonl")},
            "tasks": [{"name": "s", "kind": "summarize"}],
            "engine": {"backend": SCRIPTED, **engine},
            "run": {"directory": str(folder)},
        }
    )


def local_process(folder: Path, ring: Callable[[], None] = lambda: None, **engine: Any) -> WorkerProcess:
    return WorkerProcess(configured(folder, **engine), folder / "worker.log", folder / "offload", ring)


def in_process(folder: Path, ring: Callable[[], None] = lambda: None, **engine: Any) -> InProcessWorker:
    return InProcessWorker(configured(folder, **engine), folder / "offload", ring)


def asked(*texts: str, first: int = 1) -> list[Request]:
    """Requests for text about ``texts``, numbered from ``first``."""
    return [Request(number, tuple(text.encode()), Decode(60)) for number, text in enumerate(texts, first)]


def heard(
    worker: Worker, done: Callable[[Sequence[FromWorker]], bool], seconds: float = 60
) -> list[FromWorker]:
    """What a worker says until ``done`` is content with it."""
    messages: list[FromWorker] = []
    until = time.monotonic() + seconds
    while not done(messages):
        assert time.monotonic() < until, f"the worker said only {messages}"
        messages += worker.collect()
        time.sleep(0.002)
    return messages
