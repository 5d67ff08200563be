"""Whatever a beginning of a prompt comes from (memory, disk, a checkpoint, nowhere), the answer is the
same.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config import StoreConfig
from pipeline.engine.packed.attention import IMPLEMENTATION
from pipeline.engine.packed.engine import PackedEngine
from pipeline.engine.packed.feed import Row
from pipeline.engine.packed.model_runner import PackedModelRunner
from pipeline.engine.packed.page_allocator import Run
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.packed.prefix_cache import PrefixCache
from pipeline.engine.packed.sequence import PAGE_TOKENS, HeldBeginning
from pipeline.engine.packed.support import sliding_window, unsupported
from pipeline.engine.reuse.device_time import lasting
from pipeline.engine.reuse.prefix_store import PrefixStore
from pipeline.engine.reuse.store_session import StoreSession
from pipeline.records import Decode, Generation, Plan, Request, Score
from pipeline.stores.kv.admin import ls, prune
from pipeline.stores.kv.files import used_bytes
from pipeline.stores.kv.store import KvStore
from tests.equivalence.equality import assert_equal_texts, reference_scores, reference_text
from tests.equivalence.families import prompts, tiny_model
from tests.equivalence.test_families import CONTINUATIONS, END_IDS
from tests.equivalence.test_packed import Watched

PLAN = Plan("float32", "none", "device", "document_first", 512, 4, 10_000, 100, 1)
HEAD = prompts((9,), seed=3)[0]
DOCUMENTS = prompts((70, 130, 90, 250), seed=4)
QUESTIONS = prompts((5, 12, 7), seed=5)
PACKED = ("llama (GQA)", "qwen3", "gpt_neox (MHA)", "mixtral (MoE)")
NEW_TOKENS = 20


@contextmanager
def shelf_in(folder: Path, documents: str = "always", **settings: Any) -> Iterator[StoreSession]:
    config = StoreConfig.model_validate({"documents": documents, "keep_free": 0, **settings})
    session = StoreSession(
        KvStore(folder, quota_bytes=config.quota, storage_format=config.format, free_floor_bytes=0), config
    )
    try:
        yield session
    finally:
        session.close()


def asked(
    question: int,
    number: int,
    ask: Decode | Score,
    documents: Sequence[tuple[int, ...]] = DOCUMENTS,
    awaited: int = 0,
) -> list[Request]:
    return [
        Request(
            number + place, (*HEAD, *document, *QUESTIONS[question]), ask, len(HEAD), len(document), awaited
        )
        for place, document in enumerate(documents)
    ]


def answers(
    model: Any,
    session: StoreSession | None,
    requests: Sequence[Request],
    name: str = "llama",
    plan: Plan = PLAN,
) -> list[Generation]:
    reuse = PrefixStore(session, {"model": name, "attention": IMPLEMENTATION}) if session else None
    static = Watched(model, plan, end_ids=END_IDS, pad_id=0)
    engine = PackedEngine(
        model, plan, end_ids=END_IDS, static=static, window=sliding_window(model.config), reuse=reuse
    )
    return answers_of(engine, model, static, session, requests)


def answers_of(
    engine: PackedEngine,
    model: Any,
    static: Watched,
    session: StoreSession | None,
    requests: Sequence[Request],
) -> list[Generation]:
    engine.admit(requests)
    done: list[Generation] = []
    while not engine.idle:
        done += engine.step()
    model.set_attn_implementation("sdpa")
    assert [generation.error for generation in done] == [None] * len(requests)
    assert not static.handed
    assert not engine._scheduler.pages
    assert set(engine._scheduler.pool.runs) == _runs_kept(engine)
    if session:
        session.writer.flush()
    return sorted(done, key=lambda generation: generation.request_id)


def _runs_kept(engine: PackedEngine) -> set[Run]:
    """Of the beginnings that stay in memory."""
    return {part.run for held in engine._scheduler.cached.held for part in held.chain}


def check_scores(model: Any, requests: Sequence[Request], done: Sequence[Generation]) -> None:
    expected = torch.tensor([reference_scores(model, request.ids, CONTINUATIONS) for request in requests])
    torch.testing.assert_close(
        torch.tensor([generation.scores for generation in done]), expected, atol=2e-4, rtol=1e-5
    )


def check_texts(
    model: Any, requests: Sequence[Request], done: Sequence[Generation], end_ids: Sequence[int] = END_IDS
) -> None:
    texts = [reference_text(model, request.ids, end_ids, NEW_TOKENS) for request in requests]
    assert assert_equal_texts(texts, [generation.token_ids for generation in done]) <= 1


@pytest.mark.parametrize("family", PACKED)
def test_a_second_task_in_another_process_loads_what_the_first_has_read(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    assert unsupported(model, PLAN) is None
    first, second, third = (
        asked(0, 0, Score(CONTINUATIONS)),
        asked(1, 10, Score(CONTINUATIONS)),
        asked(2, 20, Decode(NEW_TOKENS)),
    )
    with shelf_in(tmp_path) as session:
        read = answers(model, session, first)
        check_scores(model, first, read)
        assert [one.computed_tokens for one in read] == [one.prompt_tokens for one in read]
        assert session.tally.loaded == 0
        assert session.store.counters.stored == len(DOCUMENTS)
    with shelf_in(tmp_path) as session:
        loaded = answers(model, session, second)
        check_scores(model, second, loaded)
        assert {one.computed_tokens for one in loaded} == {len(QUESTIONS[1])}
        assert (session.tally.loaded, session.tally.computed_tokens) == (len(DOCUMENTS), 0)
        check_texts(model, third, answers(model, session, third))
        assert (session.tally.loaded, session.tally.computed_tokens) == (2 * len(DOCUMENTS), 0)
        assert session.store.counters.stored == 0


def test_batches_mix_documents_that_are_there_and_documents_that_are_not(tmp_path: Path) -> None:
    model = tiny_model("llama (GQA)")
    with shelf_in(tmp_path) as session:
        answers(model, session, asked(0, 0, Score(CONTINUATIONS), DOCUMENTS[:2]))
        mixed = [*asked(1, 10, Decode(NEW_TOKENS)), *asked(2, 20, Decode(NEW_TOKENS))]
        done = answers(model, session, mixed)
        check_texts(model, mixed, done)
        assert max(generation.batch_rows for generation in done) > 1
        assert session.tally.loaded == 2
        assert session.tally.shared == len(DOCUMENTS)


def test_several_questions_share_a_document_in_memory_without_a_store() -> None:
    model = tiny_model("llama (GQA)")
    requests = [
        request for question in range(3) for request in asked(question, 10 * question, Score(CONTINUATIONS))
    ]
    done = answers(model, None, requests)
    check_scores(model, requests, done)
    once = sum(len(HEAD) + len(document) for document in DOCUMENTS)
    questions = sum(map(len, QUESTIONS)) * len(DOCUMENTS)
    assert sum(one.computed_tokens or 0 for one in done) == once + questions


def test_only_what_this_run_will_ask_again_is_stored(tmp_path: Path) -> None:
    model = tiny_model("llama (GQA)")
    long = prompts((300, 310), seed=6)
    with shelf_in(tmp_path, "auto") as session:
        answers(model, session, asked(0, 0, Score(CONTINUATIONS), long))
        assert session.store.counters.stored == 0
        answers(model, session, asked(0, 0, Score(CONTINUATIONS), long, awaited=1))
        assert session.store.counters.stored == 2
    with shelf_in(tmp_path, "never") as session:
        answers(model, session, asked(0, 0, Score(CONTINUATIONS), prompts((300,), seed=7), awaited=1))
        assert session.store.counters.stored == 0


def test_another_models_cache_is_never_taken(tmp_path: Path) -> None:
    model, other = tiny_model("llama (GQA)"), tiny_model("llama (GQA)", seed=1)
    requests = asked(0, 0, Score(CONTINUATIONS))
    with shelf_in(tmp_path) as session:
        answers(model, session, requests, "one")
        check_scores(other, requests, answers(other, session, requests, "other"))
        assert session.tally.loaded == 0
        with pytest.raises(
            AssertionError
        ):  # negative control: under one name the wrong numbers would be seen
            check_scores(other, requests, answers(other, session, asked(0, 30, Score(CONTINUATIONS)), "one"))
        assert session.tally.loaded == len(DOCUMENTS)


def test_instructions_are_read_once_for_all_starts(tmp_path: Path) -> None:
    model = tiny_model("llama (GQA)")
    shared = prompts((80,), seed=8)[0]
    requests = [
        Request(number, (*shared, *own), Score(CONTINUATIONS), len(shared), len(own) - 1)
        for number, own in enumerate(DOCUMENTS)
    ]
    for start in range(2):
        with shelf_in(tmp_path, "never") as session:
            check_scores(model, requests, answers(model, session, requests))
            assert (session.store.counters.stored, session.tally.loaded) == ((1, 0), (0, 1))[start]


def test_a_disk_that_is_slower_than_computing_is_left_alone(tmp_path: Path) -> None:
    model = tiny_model("llama (GQA)")
    requests = asked(0, 0, Score(CONTINUATIONS))
    with shelf_in(tmp_path) as session:
        answers(model, session, requests)
        session.store.speeds.read(1 << 20, 1e6)
        check_scores(model, requests, answers(model, session, requests))
        assert (session.tally.loaded, session.tally.recomputed) == (0, len(DOCUMENTS))


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_a_long_document_goes_on_where_it_was(tmp_path: Path, at: float) -> None:
    """The engine is left in the middle, as by a crash; another one goes on from its last checkpoint, in the
    text too.
    """
    model = tiny_model("llama (GQA)")
    plan = dataclasses.replace(PLAN, prefill_chunk_tokens=32)
    (request,) = asked(0, 0, Decode(NEW_TOKENS), prompts((400,), seed=9))
    steps = 0

    def engine_on(session: StoreSession) -> tuple[PackedEngine, Watched]:
        session.computed(1000, lasting(1000.0))  # a slow model: everything is long
        reuse, static = (
            PrefixStore(session, {"model": "llama", "attention": IMPLEMENTATION}),
            Watched(model, plan, end_ids=(), pad_id=0),
        )
        return PackedEngine(model, plan, end_ids=(), static=static, window=None, reuse=reuse), static

    with shelf_in(tmp_path, "auto", checkpoint_seconds=1e-6) as session:
        engine, _ = engine_on(session)
        engine.admit([request])
        while steps < at * NEW_TOKENS:
            engine.step()
            session.writer.flush()
            steps += 1
    with shelf_in(tmp_path, "auto", checkpoint_seconds=1e-6) as session:
        engine, static = engine_on(session)
        done = answers_of(engine, model, static, session, [request])
        check_texts(model, [request], done, ())
        assert session.tally.resumed == 1
        assert session.tally.computed_tokens == 1000  # nothing of the document was read again
        assert session.tally.resumed_text_tokens == steps
    assert used_bytes(tmp_path) < 100_000  # and nothing of it is left


def slow_engine(model: Any, session: StoreSession) -> tuple[PackedEngine, Watched]:
    """For which every document is long, read in passes of 32 tokens."""
    session.computed(1000, lasting(1000.0))
    plan = dataclasses.replace(PLAN, prefill_chunk_tokens=32)
    reuse, static = (
        PrefixStore(session, {"model": "llama", "attention": IMPLEMENTATION}),
        Watched(model, plan, end_ids=(), pad_id=0),
    )
    return PackedEngine(model, plan, end_ids=(), static=static, window=None, reuse=reuse), static


def test_an_answer_that_a_crash_kept_from_being_recorded_is_soon_there_again(tmp_path: Path) -> None:
    model = tiny_model("llama (GQA)")
    (request,) = asked(0, 0, Decode(NEW_TOKENS), prompts((400,), seed=9))
    with shelf_in(tmp_path, "auto", checkpoint_seconds=1e-6) as session:
        engine, static = slow_engine(model, session)
        engine.admit([request])
        while not engine.idle:
            engine.step()
            session.writer.flush()
        with shelf_in(
            tmp_path, "auto", checkpoint_seconds=1e-6
        ) as after:  # the first one was never told that all is recorded
            engine, static = slow_engine(model, after)
            check_texts(model, [request], answers_of(engine, model, static, after, [request]), ())
            assert after.tally.computed_tokens == 1000
            assert after.tally.resumed_text_tokens == NEW_TOKENS - 1
    assert not ls(tmp_path).entries


def test_a_document_that_begins_like_an_unfinished_one(tmp_path: Path) -> None:
    """The checkpoint of another document with the same instructions is not its own: it is saved and kept from
    its first token on.
    """
    model = tiny_model("llama (GQA)")
    shared, (first, second) = prompts((80,), seed=8)[0], prompts((300, 290), seed=9)
    one = Request(0, (*shared, *first, 5), Decode(NEW_TOKENS), len(shared), len(first))
    other = Request(1, (*shared, *second, 5), Score(CONTINUATIONS), len(shared), len(second))
    with shelf_in(tmp_path, checkpoint_seconds=1e-6) as session:
        engine, _ = slow_engine(model, session)
        engine.admit([one])
        engine.step()  # read and saved; its text is never written to its end
        session.writer.flush()
        assert "checkpoint" in {entry.kind for entry in ls(tmp_path).entries}
    for start in range(2):
        with shelf_in(tmp_path, checkpoint_seconds=1e-6) as session:
            engine, static = slow_engine(model, session)
            check_scores(model, [other], answers_of(engine, model, static, session, [other]))
            assert (session.tally.loaded, session.tally.resumed, session.store.counters.declined["gap"]) == (
                start,
                0,
                0,
            )


def test_saving_goes_on_after_a_checkpoint_was_lost(tmp_path: Path) -> None:
    model = tiny_model("llama (GQA)")
    (request,) = asked(0, 0, Decode(NEW_TOKENS), prompts((400,), seed=9))

    class Thief:
        passes = 0

        def started(self, request_ids: Any) -> None: ...

        def pulse(self) -> None:
            self.passes += 1
            session.writer.flush()
            if self.passes == 4:
                assert prune(tmp_path).entries

    with shelf_in(tmp_path, "auto", checkpoint_seconds=1e-6) as session:
        engine, _ = slow_engine(model, session)
        engine.listener = Thief()
        engine.admit([request])
        engine.step()
    with shelf_in(tmp_path, "auto") as session:
        engine, static = slow_engine(model, session)
        check_texts(model, [request], answers_of(engine, model, static, session, [request]), ())
        assert (session.tally.resumed, session.tally.computed_tokens) == (1, 1000)


def test_a_checkpoint_that_waits_keeps_no_more_in_memory_than_it_is_large() -> None:
    model = tiny_model("llama (GQA)")
    pool = KvPool(20, torch.device("cpu"))
    cache = PrefixCache(PackedModelRunner(model, pool), PLAN, None)
    states = torch.arange(160 * 2 * 4.0).view(160, 2, 4)
    for run in (Run(0, 10), Run(10, 10)):
        pool.fill(0, run, (states, -states))
    row = Row(HeldBeginning(0, 150, Run(0, 10)), Run(10, 10), 150)
    for begin in (0, 20, 200):
        ranges = cache._ranges(row, begin)
        whole = torch.cat([states[:150], states[:150]])[begin:].transpose(0, 1)
        assert torch.equal(ranges["L0.k"], whole)
        assert torch.equal(ranges["L0.v"], -whole)
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in ranges.values())


def _flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _cut(path: Path, chance: random.Random) -> None:
    with path.open("r+b") as stream:
        stream.truncate(chance.randrange(path.stat().st_size))


@pytest.mark.parametrize("harm", [_flip, _cut])
def test_damage_costs_time_and_no_answer(harm: Any, tmp_path: Path) -> None:
    """Every file of the store is harmed in turn, anywhere in it."""
    model, chance = tiny_model("llama (GQA)"), random.Random(7)
    requests = asked(0, 0, Score(CONTINUATIONS), DOCUMENTS[:1])
    for _ in range(10):
        with shelf_in(tmp_path) as session:
            answers(model, session, requests)
        harmed = chance.choice(sorted((tmp_path / "v1" / "entries").rglob("*.*")))
        harm(harmed, chance)
        with shelf_in(tmp_path) as session:
            check_scores(model, requests, answers(model, session, requests))
            assert session.tally.loaded == 0
            assert sum(session.store.counters.warnings.values()) >= 1
            assert session.store.counters.stored == 1  # whole again


def test_a_foreign_models_file_under_the_right_name(tmp_path: Path) -> None:
    model, other = tiny_model("llama (GQA)"), tiny_model("llama (GQA)", seed=1)
    requests = asked(0, 0, Score(CONTINUATIONS), DOCUMENTS[:1])
    for name, one in (("ours", model), ("theirs", other)):
        with shelf_in(tmp_path / name) as session:
            answers(one, session, requests, name)
    (ours,), (theirs,) = (list((tmp_path / name / "v1" / "entries").iterdir()) for name in ("ours", "theirs"))
    (tensors,) = theirs.glob("*.safetensors")
    shutil.copy(tensors, ours / tensors.name)
    with shelf_in(tmp_path / "ours") as session:
        check_scores(model, requests, answers(model, session, requests, "ours"))
        assert session.tally.loaded == 0
        assert session.store.counters.warnings["damaged"] == 1


def test_a_quota_cut_in_half_between_runs_holds(tmp_path: Path) -> None:
    model = tiny_model("llama (GQA)")
    requests = asked(0, 0, Score(CONTINUATIONS))
    with shelf_in(tmp_path) as session:
        answers(model, session, requests)
        used = session.store.used_bytes()
    with shelf_in(tmp_path, quota=used // 2) as session:
        assert session.store.used_bytes() <= used // 2
        check_scores(model, requests, answers(model, session, requests))
        assert session.store.used_bytes() <= used // 2
        assert 0 < session.tally.loaded < len(DOCUMENTS)


def test_two_processes_on_one_store(tmp_path: Path) -> None:
    model = tiny_model("llama (GQA)")
    with shelf_in(tmp_path) as one, shelf_in(tmp_path) as two:
        answers(model, one, asked(0, 0, Score(CONTINUATIONS)))
        requests = asked(1, 10, Score(CONTINUATIONS))
        check_scores(model, requests, answers(model, two, requests))
        assert (two.tally.loaded, two.store.counters.stored) == (len(DOCUMENTS), 0)


def test_documents_from_the_store_stay_within_the_memory_of_the_plan(tmp_path: Path) -> None:
    """Loading costs no pass, so nothing but their columns keeps all of them from being let in at once."""
    model = tiny_model("llama (GQA)")
    plan = dataclasses.replace(PLAN, max_batch_rows=16, batch_tokens=1200)
    requests = asked(0, 0, Score(CONTINUATIONS), prompts((250,) * 12, seed=11))
    with shelf_in(tmp_path) as session:
        answers(model, session, requests)
    held: list[int] = []

    class Watch:
        def started(self, request_ids: Any) -> None: ...

        def pulse(self) -> None:
            held.append(engine._scheduler.pages * PAGE_TOKENS)

    with shelf_in(tmp_path) as session:
        reuse, static = (
            PrefixStore(session, {"model": "llama", "attention": IMPLEMENTATION}),
            Watched(model, plan, end_ids=(), pad_id=0),
        )
        engine = PackedEngine(model, plan, end_ids=(), static=static, window=None, reuse=reuse)
        engine.listener = Watch()
        check_scores(model, requests, answers_of(engine, model, static, session, requests))
        assert session.tally.loaded == len(requests)
    assert 250 < max(held) <= 1200
