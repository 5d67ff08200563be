"""Tasks are driven by the scripted engine: real prompts, real splitting, answers that depend only on the
prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.errors import DocumentFailed
from pipeline.prompts import FrameBuilder
from pipeline.records import Answer, Document, Generation, Origin, Plan, Request, Step
from pipeline.tasks import Setting, Task, build_task
from pipeline.tasks.registry import kind_of
from pipeline.testing.scripted_backend import ByteTokenizer, ScriptedEngine

PLAN = Plan("float32", "none", "device", "instructions_first", 4096, 8, 100_000, 512, 4)


class Driver:
    """Runs a task on a text and keeps what was asked. ``reply`` may replace the scripted engine's answer to a
    step.
    """

    def __init__(self, task: Task, reply: Callable[[Step], Generation | None]) -> None:
        self.task = task
        self.asked: list[Step] = []
        self._reply = reply
        self._engine = ScriptedEngine(PLAN, {})

    def answer(self, text: str, **fields: Any) -> Answer:
        work = self.task.work(Document("d", text, Origin("f", 1), fields))
        replies: list[Generation] | None = None
        failed: DocumentFailed | None = None
        while True:
            try:
                steps = (
                    work.throw(failed) if failed else next(work) if replies is None else work.send(replies)
                )
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            self.asked += steps
            replies = [self._reply(step) or self._scripted(step) for step in steps]
            failed = next((DocumentFailed(*reply.error) for reply in replies if reply.error), None)

    def _scripted(self, step: Step) -> Generation:
        self._engine.admit([Request(1, step.prompt.ids, step.ask)])
        return self._engine.step()[0]

    def failure(self, text: str, **fields: Any) -> DocumentFailed:
        with pytest.raises(DocumentFailed) as caught:
            self.answer(text, **fields)
        return caught.value


@pytest.fixture
def drive() -> Callable[..., Driver]:
    """``drive(kind=..., context_tokens=..., reply=..., **task keys)`` gives a Driver."""

    def make(
        context_tokens: int = 600,
        reply: Callable[[Step], Generation | None] = lambda step: None,
        layout: str = "instructions_first",
        **keys: Any,
    ) -> Driver:
        setting = Setting(
            ByteTokenizer(), FrameBuilder(ByteTokenizer(), layout, {}, "2026-01-31"), context_tokens
        )
        config = kind_of(keys["kind"]).section.model_validate({"name": "t", **keys})
        return Driver(build_task(config, setting, {}), reply)

    return make
