"""A card whose memory runs out: everything is answered, as the CPU answers it, with less at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.interface import Engine
from pipeline.engine.model.loading import LoadedModel
from pipeline.engine.select import select_engine, static_engine
from pipeline.records import Decode, Generation, Plan, Request
from tests.engine.small_models import save_llama
from tests.equivalence.equality import Reference, assert_equal_texts, reference_text
from tests.equivalence.families import prompts
from tests.pretend_card.engines import loaded_on

PLAN = Plan("float32", "none", "device", "instructions_first", 2048, 4, 6_000, 2048, 4096)
DOCUMENTS = prompts((1500, 1300, 1400), seed=3)
NEW_TOKENS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"num_hidden_layers": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096}
    return save_llama(
        tmp_path_factory.mktemp("ladder") / "model", initializer_range=0.25, vocab_size=256, **sizes
    )


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Reference]:
    model = loaded_on(folder, "none", "float32", device_map="cpu").model
    return [reference_text(model, ids, (), NEW_TOKENS, cached=True) for ids in DOCUMENTS]


@pytest.fixture
def loaded(card: Any, folder: Path) -> LoadedModel:
    return loaded_on(folder, "none", "float32")


def answered(engine: Engine, count: int = len(DOCUMENTS)) -> list[Generation]:
    engine.admit([Request(number, ids, Decode(NEW_TOKENS)) for number, ids in enumerate(DOCUMENTS[:count])])
    done: list[Generation] = []
    while not engine.idle:
        done += engine.step()
    assert [generation.error for generation in done] == [None] * count
    return sorted(done, key=lambda generation: generation.request_id)


@pytest.mark.parametrize(
    ("make", "size"), [(static_engine, "40MiB"), (select_engine, "46MiB")], ids=["static", "packed"]
)
def test_fewer_at_a_time(
    make: Callable[..., tuple[Engine, str]],
    size: str,
    loaded: LoadedModel,
    expected: list[Reference],
    card: Any,
    cards: Callable[..., None],
) -> None:
    cards(size, context="0", workspace="0")
    before = card.memory(0)["ooms"]
    engine, _ = make(loaded, PLAN, end_ids=(), pad_id=0)
    done = answered(engine)
    assert card.memory(0)["ooms"] > before
    assert min(generation.batch_rows for generation in done) < PLAN.max_batch_rows
    assert assert_equal_texts(expected, [generation.token_ids for generation in done]) == 0


@pytest.mark.parametrize(
    ("size", "chunk", "placement", "note"),
    [
        ("26MiB", 2048, "device", "read in smaller passes"),
        ("6MiB", 64, "offloaded", "its KV cache offloaded"),
    ],
)
def test_alone_it_goes_down_the_ladder(
    size: str,
    chunk: int,
    placement: str,
    note: str,
    loaded: LoadedModel,
    expected: list[Reference],
    cards: Callable[..., None],
) -> None:
    cards(size, context="0", workspace="0")
    plan = dataclasses.replace(PLAN, prefill_chunk_tokens=chunk)
    (done,) = answered(static_engine(loaded, plan, end_ids=(), pad_id=0)[0], 1)
    assert done.placement == placement
    assert note in done.notes[0]
    assert assert_equal_texts(expected[:1], [done.token_ids]) == 0
