"""A backend without weights, whole in this file, runs a night through the real command line: it says its own
facts and plan, and no memory figure is invented for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Config
from pipeline.engine.interface import Engine, Listener, ModelFacts, PlanRequest
from pipeline.engine.remote import plan_without_weights
from pipeline.records import Decode, Generation, Plan, Request, digest
from pipeline.testing.scripted_backend import ByteTokenizer
from tests.nights import ANight, documents

TOY = "tests.e2e.test_toy_backend:ToyBackend"


class ToyBackend:
    """Answers with the length of what it was asked, or prefers a label by its digest."""

    def __init__(self, config: Config, say: Callable[[str], None]) -> None:
        self._config = config

    def tokenizer(self) -> ByteTokenizer:
        return ByteTokenizer()

    def identity(self) -> Mapping[str, Any]:
        return {"id": self._config.model.id, "server": "toy 1"}

    def resolve(self) -> Mapping[str, str]:
        return {"dtype": "float32", "attention": "sdpa"}

    def facts(self) -> ModelFacts:
        return ModelFacts(context_tokens=8192)

    def plan(self, request: PlanRequest) -> Plan:
        return plan_without_weights(self._config, request, 3, ("the server takes three at once",))

    def open_engine(
        self, plan: Plan, offload_folder: Path, say: Callable[[str], None]
    ) -> tuple[Engine, Mapping[str, Any]]:
        return ToyEngine(plan), {"engine": "a toy"}

    def store_facts(self, *, close: bool = False) -> Mapping[str, Any]:
        return {}


class ToyEngine:
    """As many requests a step as the plan has rows."""

    def __init__(self, plan: Plan) -> None:
        self.listener: Listener | None = None
        self._rows, self._queue = plan.max_batch_rows, list[Request]()

    @property
    def idle(self) -> bool:
        return not self._queue

    def admit(self, requests: Sequence[Request]) -> None:
        self._queue += requests

    def release(self, request_ids: Collection[int]) -> None:
        self._queue = [request for request in self._queue if request.request_id not in request_ids]

    def step(self) -> Sequence[Generation]:
        batch, self._queue = self._queue[: self._rows], self._queue[self._rows :]
        if self.listener is not None:
            self.listener.started([request.request_id for request in batch])
        return [self._answer(request, len(batch)) for request in batch]

    def _answer(self, request: Request, rows: int) -> Generation:
        number, ask = request.request_id, request.ask
        counted = {"prompt_tokens": len(request.ids), "seconds": 0.001, "batch_rows": rows}
        if isinstance(ask, Decode):
            text = f"{len(request.ids)} tokens".encode()
            return Generation(number, tuple(text), finish_reason="stop", **counted)
        scores = tuple(
            -int(digest(repr(request.ids), repr(label))[:4], 16) / 7e3 for label in ask.continuations
        )
        return Generation(number, scores=scores, **counted)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> ANight:
    """Interrupted after some documents, and taken up again."""
    extra = {"engine": {"backend": TOY, "batch_rows": None}, "model": {"id": "toy", "context_tokens": None}}
    night = ANight(tmp_path_factory.mktemp("toy"), documents(12, longest=4), extra=extra)
    first = night.run("--limit", "5")
    assert first.returncode == 0, first.stderr
    assert night.status()["tasks"]["topic"]["done"] == 5
    second = night.run()
    assert second.returncode == 0, second.stderr
    return night


def test_the_plan_is_the_backends_own(night: ANight) -> None:
    done = night.command("plan", str(night.config), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["plan"]["max_batch_rows"] == 3
    assert "the server takes three at once" in told["plan"]["reasons"]
    assert told["plan"]["context_tokens"] == 8192
    assert "not on this machine" in told["cannot_plan"]
    assert told["model"] is None
    assert told["quantities"] == {}
    words = night.command("plan", str(night.config)).stdout
    assert "the server takes three at once" in words
    assert "Llama" not in words


def test_every_document_is_answered_once(night: ANight) -> None:
    rows = night.export()
    assert len(rows) == 12
    assert all(row["summary"].endswith(" tokens") for row in rows)
    assert {row["topic"] for row in rows} <= {"world", "sports", "business"}
    assert night.run().returncode == 0
    assert night.loads() == 2  # the third run had nothing to ask


def test_its_report_says_what_it_knows(night: ANight) -> None:
    done = night.command("report", str(night.directory), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["loaded"]["engine"] == "a toy"
    assert report["model"]["server"] == "toy 1"
    assert "weights_bytes" not in report["loaded"]
    assert night.command("report", str(night.directory)).returncode == 0
    assert night.command("show", str(night.directory), "d0003").returncode == 0


@pytest.mark.parametrize(
    "arguments", [("bench", "{config}"), ("plan", "{config}", "--measure"), ("plan", "{config}", "--tables")]
)
def test_what_needs_weights_is_refused_in_words(night: ANight, arguments: tuple[str, ...]) -> None:
    done = night.command(*(part.format(config=night.config) for part in arguments))
    assert done.returncode == 2, done.stdout
    assert "on this machine" in done.stderr


def test_another_backend_is_another_model(night: ANight) -> None:
    """The name of a backend is part of no task; who answers is."""
    renamed = f"engine.backend={TOY.replace('ToyBackend', 'Renamed')}"
    assert night.run("--set", renamed).returncode == 0
    other = night.run("--set", "engine.backend=pipeline.testing.scripted_backend:ScriptedBackend")
    assert other.returncode == 2
    assert "model" in other.stderr


class Renamed(ToyBackend):
    """The same model under another name."""
