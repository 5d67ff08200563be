"""What an engine holds of a card's memory is what the plan gives it: the pool's bytes are the pool's or those
of a static batch, never both, and nothing is there twice.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.interface import Engine
from pipeline.engine.model.loading import LoadedModel, load_model
from pipeline.engine.packed.engine import PackedEngine
from pipeline.engine.packed.page_pool import KvPool
from pipeline.engine.select import select_engine, static_engine
from pipeline.records import Decode, Generation, Plan, Request
from tests.engine.small_models import save_llama
from tests.engine.streaming.opened import configured
from tests.equivalence.equality import assert_equal_texts, reference_text
from tests.equivalence.families import prompts
from tests.pretend_card.engines import Case, loaded_on, streamed_on

LAYERS, TOKENS = 8, 4096
# 16 numbers a head, two heads, keys and values, in float32
TOKEN_BYTES = LAYERS * 2 * 2 * 16 * 4
PLAN = Plan("float32", "none", "device", "instructions_first", 2 * TOKENS, 4, TOKENS, 256, TOKEN_BYTES)
PAGE_BYTES, MIB = 16 * TOKEN_BYTES, 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"num_hidden_layers": LAYERS, "max_position_embeddings": 2 * TOKENS, "vocab_size": 256}
    return save_llama(tmp_path_factory.mktemp("held") / "model", initializer_range=0.25, **sizes)


@pytest.fixture
def loaded(card: Any, folder: Path) -> LoadedModel:
    return loaded_on(folder, "none", "float32")


def request(number: int, tokens: int, new: int) -> Request:
    return Request(number, prompts((tokens,), seed=number)[0], Decode(new, loops_end=False))


def worked_off(engine: Engine, *requests: Request) -> list[Generation]:
    engine.admit(requests)
    done: list[Generation] = []
    while not engine.idle:
        done += engine.step()
    return done


def pool_of(engine: Engine) -> KvPool:
    assert isinstance(engine, PackedEngine)
    return engine._pool


def test_the_pool_is_one_piece_of_memory_of_the_planned_bytes(loaded: LoadedModel, card: Any) -> None:
    """Taken layer by layer it would lie in what passes leave, and they would need new memory."""
    engine, _ = select_engine(loaded, PLAN, end_ids=(), pad_id=0)
    before = card.memory(0)["allocated"]
    worked_off(engine, request(0, 20, 2))
    layers = [states for pair in pool_of(engine)._layers.values() for states in pair]
    assert len({states.untyped_storage().data_ptr() for states in layers}) == 1
    assert pool_of(engine).nbytes == PLAN.batch_tokens * TOKEN_BYTES + PAGE_BYTES
    assert 0 <= card.memory(0)["allocated"] - before - pool_of(engine).nbytes < MIB


def test_a_row_that_the_pool_cannot_hold_is_kept_elsewhere_and_the_pool_makes_way(
    loaded: LoadedModel, folder: Path, card: Any
) -> None:
    engine, _ = select_engine(loaded, PLAN, end_ids=(), pad_id=0)
    short, long = request(0, 40, 4), request(1, TOKENS + 100, 4)
    worked_off(engine, short)
    held = card.memory(0)["allocated"]
    card.reset_peak(0)
    (done,) = worked_off(engine, long)
    assert (done.error, done.placement) == (None, "offloaded")
    assert card.memory(0)["peak_allocated"] == held, "beside the pool, or more than it, was held"
    (again,) = worked_off(engine, dataclasses.replace(short, request_id=2))
    on_cpu = loaded_on(folder, "none", "float32", device_map="cpu").model
    texts = [reference_text(on_cpu, each.ids, (), 4, cached=True) for each in (short, long)]
    assert assert_equal_texts(texts, [again.token_ids, done.token_ids]) == 0


def test_beside_a_pool_in_use_no_static_batch_runs(loaded: LoadedModel) -> None:
    engine, _ = select_engine(loaded, PLAN, end_ids=(), pad_id=0)
    engine.admit([request(0, 40, 30), request(1, TOKENS + 100, 1)])
    finished = []
    while not engine.idle:
        finished += [generation.request_id for generation in engine.step()]
        assert 1 not in finished or pool_of(engine).nbytes == 0
    assert finished == [0, 1]


def test_rows_that_go_on_are_not_there_twice(loaded: LoadedModel, card: Any) -> None:
    """A quarter of a batch ends early, and its cache is cut down to the others."""
    plan = dataclasses.replace(PLAN, batch_tokens=4 * 1040)
    engine, _ = static_engine(loaded, plan, end_ids=(), pad_id=0)
    asked = [request(number, 1000, 2 if number == 0 else 40) for number in range(4)]
    worked_off(engine, asked[0])  # what libraries make at their first call
    before = card.memory(0)["allocated"]
    card.reset_peak(0)
    done = worked_off(engine, *asked)
    assert {generation.batch_rows for generation in done} == {4}
    assert card.memory(0)["peak_allocated"] - before < 1.5 * plan.batch_tokens * TOKEN_BYTES


def test_weights_that_are_unpacked_are_not_there_in_4_bits_too(card: Any, tmp_path: Path) -> None:
    """Not even until the garbage collector has been there."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4}
    folder = save_llama(tmp_path / "model", **sizes)
    config = configured(folder, "nf4", dtype="bfloat16").model
    gc.collect()
    before = card.memory(0)["allocated"]
    gc.disable()
    try:
        loaded = load_model(config, "bfloat16", tmp_path / "offload", unpacked=((2048, 512), (512, 2048)))
        held = card.memory(0)["allocated"] - before
    finally:
        gc.enable()
    rounded = 512 * 16 * sum(1 for _ in loaded.model.modules())
    assert 0 <= held - loaded.facts["weights_bytes"] < rounded


def test_streamed_weights_of_any_shape_become_plain_numbers_in_the_same_memory(
    card: Any, cards: Callable[..., None], tmp_path: Path
) -> None:
    cards("1GiB", workspace="0")
    folder = save_llama(
        tmp_path / "model", hidden_size=512, intermediate_size=2048, num_hidden_layers=3, vocab_size=256
    )
    before = card.memory(0)["allocated"]
    loaded = streamed_on(folder, Case("streamed", "nf4", "bfloat16"), grain="module")
    worked_off(
        static_engine(loaded, Case("static", "nf4", "bfloat16").plan, end_ids=(), pad_id=0)[0],
        request(0, 20, 2),
    )
    held = card.memory(0)["allocated"] - before
    kept = loaded.placement.bytes_by_device["cuda:0"]
    assert held - kept < loaded.facts["streamed"]["working_bytes"] + MIB
