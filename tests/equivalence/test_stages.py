"""Static batches with the store: every family's cache is taken apart, stored, loaded by another process and
put together again.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engine.model.forward import Forward
from pipeline.engine.reuse.device_time import lasting
from pipeline.engine.reuse.prefix_store import PrefixStore
from pipeline.engine.reuse.store_session import StoreSession
from pipeline.engine.static.engine import StaticEngine
from pipeline.engine.static.staged_prefill import StagedPrefill, _Cached, not_reusable
from pipeline.records import Decode, Generation, Request, Score
from pipeline.stores.kv.admin import ls
from pipeline.stores.kv.files import used_bytes
from tests.equivalence.equality import Reference, assert_equal_texts, reference_scores, reference_text
from tests.equivalence.families import FAMILIES, RECURRENT, prompts, tiny_model
from tests.equivalence.test_families import CONTINUATIONS, END_IDS
from tests.equivalence.test_reuse import DOCUMENTS, NEW_TOKENS, PLAN, QUESTIONS, asked, shelf_in

MUST_PASS = (
    "llama (GQA)",
    "qwen3",
    "mistral (sliding window)",
    "gemma3 (sliding and full)",
    "gpt_neox (MHA)",
    "falcon (MQA)",
    "mixtral (MoE)",
    "qwen3_next (hybrid)",
)
families = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in MUST_PASS else pytest.mark.full) for name in FAMILIES]
)


def answers(model: Any, session: StoreSession, requests: list[Request], **plan: Any) -> list[Generation]:
    made = dataclasses.replace(PLAN, max_batch_rows=8, **plan)
    engine = StaticEngine(model, made, end_ids=END_IDS, pad_id=0)
    engine.stages = StagedPrefill(Forward(model), PrefixStore(session, {"model": "tiny"}), 400)
    engine.admit(requests)
    done: list[Generation] = []
    while not engine.idle:
        done += engine.step()
    session.writer.flush()
    assert [generation.error for generation in done] == [None] * len(requests)
    return sorted(done, key=lambda generation: generation.request_id)


@families
def test_all_families_are_found_reusable(family: str) -> None:
    assert not_reusable(tiny_model(family), "float32") is None


@functools.cache
def alone(family: str) -> tuple[list[Reference], list[list[float]]]:
    """Texts of the first question and scores of the second about each document, in the plain way."""
    model = tiny_model(family)
    return (
        [reference_text(model, each.ids, END_IDS, NEW_TOKENS) for each in asked(0, 0, Decode(NEW_TOKENS))],
        [reference_scores(model, each.ids, CONTINUATIONS) for each in asked(1, 10, Score(CONTINUATIONS))],
    )


@families
@pytest.mark.parametrize("placement", ["device", "offloaded"])
def test_answers_from_stored_caches(family: str, placement: str, tmp_path: Path) -> None:
    """Documents of 70 to 250 tokens: far past the windows of 16."""
    model = tiny_model(family)
    texts, scores = asked(0, 0, Decode(NEW_TOKENS)), asked(1, 10, Score(CONTINUATIONS))
    with shelf_in(tmp_path) as session:
        first = answers(model, session, texts, placement=placement)
        assert session.store.counters.stored == len(DOCUMENTS)
    with shelf_in(tmp_path) as session:
        second = answers(model, session, texts, placement=placement)
        scored = answers(model, session, scores, placement=placement)
        assert (session.tally.loaded, session.tally.computed_tokens) == (2 * len(DOCUMENTS), 0)
    assert [one.computed_tokens for one in first] == [one.prompt_tokens for one in first]
    assert {one.computed_tokens for one in second} == {len(QUESTIONS[0])}
    expected, wanted = alone(family)
    for done in (first, second):
        assert assert_equal_texts(expected, [generation.token_ids for generation in done]) <= 1
    if family not in RECURRENT:
        assert max(generation.batch_rows for generation in second) > 1
    found = torch.tensor([generation.scores for generation in scored])
    torch.testing.assert_close(
        found, torch.tensor(wanted), atol=1e-3 if family in RECURRENT else 2e-4, rtol=1e-5
    )


def test_rows_from_the_disk_and_rows_just_read_in_one_batch(tmp_path: Path) -> None:
    model = tiny_model("mistral (sliding window)")
    texts = asked(0, 0, Decode(NEW_TOKENS), prompts((90, 95, 100), seed=4))
    with shelf_in(tmp_path) as session:
        answers(model, session, texts[:1])
    with shelf_in(tmp_path) as session:
        done = answers(model, session, [*texts, *asked(1, 10, Decode(NEW_TOKENS), prompts((60,), seed=5))])
        assert session.tally.loaded == 1
    assert max(generation.batch_rows for generation in done) > 2
    expected = [reference_text(model, request.ids, END_IDS, NEW_TOKENS) for request in texts]
    assert assert_equal_texts(expected, [generation.token_ids for generation in done[:3]]) <= 1


def test_what_was_loaded_is_not_in_memory_twice(tmp_path: Path) -> None:
    model = tiny_model("llama (GQA)")
    texts = asked(0, 0, Decode(NEW_TOKENS))
    with shelf_in(tmp_path) as session:
        answers(model, session, texts)
    with shelf_in(tmp_path) as session:
        engine = StaticEngine(model, dataclasses.replace(PLAN, max_batch_rows=8), end_ids=(), pad_id=0)
        engine.stages = StagedPrefill(engine._forward, PrefixStore(session, {"model": "tiny"}), 0)
        held: list[int] = []
        engine._forward.after_pass = lambda: held.append(
            sum(type(one) is _Cached for one in gc.get_objects())
        )
        engine.stages.replies(texts, (), engine._settings)
        assert session.tally.loaded == len(texts)
        assert (max(held), held[-1]) == (len(texts), 0)


class Cut(Exception):
    """The end of a process, as far as what it was doing is concerned."""


def cut_off(model: Any, request: Request, folder: Path, *, after_passes: int) -> None:
    """Answer ``request`` in passes of 64 tokens, saving after each, and stop in the middle."""
    passes = itertools.count(1)
    with shelf_in(folder, "auto", checkpoint_seconds=1e-6) as session:
        session.computed(1000, lasting(1000.0))

        def cut() -> None:
            session.writer.flush()
            if next(passes) == after_passes:
                raise Cut

        engine = StaticEngine(
            model, dataclasses.replace(PLAN, prefill_chunk_tokens=64), end_ids=END_IDS, pad_id=0
        )
        engine.stages = StagedPrefill(engine._forward, PrefixStore(session, {"model": "tiny"}), 400)
        engine._forward.after_pass = cut
        with pytest.raises(Cut), torch.inference_mode():
            engine.stages.replies([request], END_IDS, engine._settings)


@pytest.mark.parametrize("family", ["mistral (sliding window)", "qwen3_next (hybrid)"])
def test_reading_goes_on_from_a_checkpoint(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    (request,) = asked(0, 0, Score(CONTINUATIONS), prompts((300,), seed=9))
    cut_off(model, request, tmp_path, after_passes=4)
    with shelf_in(tmp_path, "auto", checkpoint_seconds=1e-6) as session:
        session.computed(1000, lasting(1000.0))
        (found,) = answers(model, session, [request], prefill_chunk_tokens=64)
        assert session.tally.resumed == 1
        assert session.tally.loaded_tokens >= 128
    assert used_bytes(tmp_path) < 100_000
    wanted = torch.tensor(reference_scores(model, request.ids, CONTINUATIONS))
    torch.testing.assert_close(torch.tensor(found.scores), wanted, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("family", ["mistral (sliding window)", "qwen3_next (hybrid)"])
def test_a_crash_in_the_text_does_not_cost_the_document(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    (request,) = asked(0, 0, Decode(NEW_TOKENS), prompts((300,), seed=9))
    document_passes = -(-request.document_end // 64)
    cut_off(model, request, tmp_path, after_passes=document_passes + 5)
    with shelf_in(tmp_path, "auto", checkpoint_seconds=1e-6) as session:
        session.computed(1000, lasting(1000.0))
        (found,) = answers(model, session, [request], prefill_chunk_tokens=64)
        assert (session.tally.resumed, session.tally.computed_tokens) == (1, 1000)
    assert not ls(tmp_path).entries
    assert (
        assert_equal_texts([reference_text(model, request.ids, END_IDS, NEW_TOKENS)], [found.token_ids]) <= 1
    )
