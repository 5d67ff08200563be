"""Whatever fails while a pass is prepared or run, no slot is lost and the requests are still answered."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.engine.kv.slot_pool import SlotClass
from pipeline.engine.packed.engine import PackedEngine
from pipeline.records import Decode, Generation, Plan, Request
from tests.equivalence.equality import assert_equal_texts, reference_text
from tests.equivalence.families import prompts, tiny_model
from tests.equivalence.test_packed import Watched

PLAN = Plan("float32", "none", "device", "document_first", 512, 4, 10_000, 100, 1)
DOCUMENT = prompts((70,), seed=4)[0]
QUESTIONS = prompts((5, 12, 7), seed=5)
NEW_TOKENS = 6


def requests() -> list[Request]:
    return [
        Request(number, (*DOCUMENT, *question), Decode(NEW_TOKENS), 0, len(DOCUMENT))
        for number, question in enumerate(QUESTIONS)
    ]


def test_out_of_memory_while_a_row_gets_its_documents_keys_loses_no_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second row of a pass has its slot, and there is no memory for what is to be copied there."""
    model = tiny_model("llama (GQA)")
    fill, calls = SlotClass.fill, 0

    def short(self: SlotClass, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:  # two layers of the first row, one of the second
            raise torch.OutOfMemoryError("CUDA out of memory")
        fill(self, *arguments)

    monkeypatch.setattr(SlotClass, "fill", short)
    static = Watched(model, PLAN, end_ids=(), pad_id=0)
    engine = PackedEngine(model, PLAN, end_ids=(), static=static, window=None)
    engine.admit(requests())
    done: list[Generation] = []
    while not engine.idle:
        done += engine.step()
    model.set_attn_implementation("sdpa")
    assert calls >= 4
    assert static.handed == len(QUESTIONS)
    assert (engine._pool.pages, engine._scheduler.pages, len(engine._cache)) == (0, 0, 0)
    found = sorted(done, key=lambda generation: generation.request_id)
    texts = [reference_text(model, request.ids, (), NEW_TOKENS) for request in requests()]
    assert assert_equal_texts(texts, [generation.token_ids for generation in found]) <= 1
