"""Engines on a card and the CPU's answers to hold them to: the same weights, quantization and dtype."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.engine.interface import Engine
from pipeline.engine.model.identity import weights_identity
from pipeline.engine.model.loading import LoadedModel, load_model
from pipeline.engine.model.location import locate
from pipeline.engine.reuse.fingerprint import CacheAccess, fingerprint_of
from pipeline.engine.reuse.store_session import StoreSession
from pipeline.engine.select import select_engine, static_engine
from pipeline.engine.streaming.load import open_streamed
from pipeline.records import Decode, Generation, Grain, KvPlacement, Plan, Request, Score, Streaming
from tests.engine.small_models import save_llama
from tests.engine.streaming.opened import answers, configured
from tests.equivalence.equality import Reference, assert_equal_texts, reference_scores, reference_text
from tests.equivalence.families import prompts
from tests.equivalence.test_reuse import shelf_in

NEW_TOKENS = 8
PREFIX = prompts((20,), seed=8)[0]
DOCUMENTS = prompts((24, 70, 33, 110), seed=4)
CONTINUATIONS = ((11,), (11, 12), (11, 12, 13), (20, 21, 22), (30, 2))
# How far the reference may lead where another order of adding chooses otherwise, and how far scores may be
# apart, for logits around 30: a few units in the last place through two layers. Eight bits round activations,
# too, where the last place decides between two neighbours.
BOUNDS: Mapping[str, float] = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.6, "int8": 1.5}


@dataclass(frozen=True)
class Case:
    """An engine: packed, static or streamed; ``store``: whether documents are kept and come back."""

    engine: str
    quantization: str
    dtype: str
    placement: KvPlacement = "device"
    store: bool = False

    def __str__(self) -> str:
        words = [self.engine, self.quantization, self.dtype, self.placement]
        return "-".join([*words, "store"] if self.store else words)

    @property
    def plan(self) -> Plan:
        return Plan(
            self.dtype, self.quantization, self.placement, "instructions_first", 256, 4, 2_000, 64, 1024
        )


@functools.cache
def folder_of(place: Path) -> Path:
    """A model whose weights are wide, so that margins between tokens mean something; its rows are multiples
    of 64, as blocks of 4-bit weights want them.
    """
    return save_llama(place / "model", initializer_range=0.25, num_hidden_layers=2, vocab_size=256)


@functools.cache
def on_cpu(folder: Path, quantization: str, dtype: str) -> tuple[list[Reference], torch.Tensor]:
    """What the CPU answers, a document at a time: texts with their margins, and scores (documents,
    continuations).
    """
    model = loaded_on(folder, quantization, dtype, device_map="cpu").model
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # it rounds more than the dtype does
    texts = [reference_text(model, ids, (), NEW_TOKENS, cached=True) for ids in asked()]
    return texts, torch.tensor([reference_scores(model, ids, CONTINUATIONS) for ids in asked()])


def asked() -> list[tuple[int, ...]]:
    return [(*PREFIX, *document) for document in DOCUMENTS]


def loaded_on(folder: Path, quantization: str, dtype: str, **changes: Any) -> LoadedModel:
    config = configured(folder, quantization, dtype=dtype).model.model_copy(update=changes)
    return load_model(config, dtype, folder.parent / "offload")


def streamed_on(folder: Path, case: Case, grain: Grain = "layer") -> LoadedModel:
    """Every layer fetched for every pass, half of them from RAM, half from the disk."""
    config = configured(folder, case.quantization, dtype=case.dtype)
    location = locate(config.model)
    identity = weights_identity(config.model, location)
    streaming = Streaming(0, 100_000, grain, 32)
    return open_streamed(config, location, case.dtype, identity, lambda _: None, "for a test", streaming)


def engine_of(case: Case, loaded: LoadedModel, session: StoreSession | None) -> Engine:
    told = {"model": "tiny"}
    caches = CacheAccess(session, fingerprint_of(case.plan, loaded, told)) if session else None
    make = static_engine if case.engine == "static" else select_engine
    engine, kind = make(loaded, case.plan, end_ids=(), pad_id=0, caches=caches)
    assert ("packed" in kind) == (case.engine != "static" and case.placement == "device"), kind
    return engine


def requests_of(first: int = 0) -> list[Request]:
    """A text and scores of each document."""
    asks = (Decode(NEW_TOKENS), Score(CONTINUATIONS))
    return [
        Request(first + 2 * number + kind, ids, ask, len(PREFIX), len(document))
        for number, (ids, document) in enumerate(zip(asked(), DOCUMENTS, strict=True))
        for kind, ask in enumerate(asks)
    ]


def hold(done: Sequence[Generation], folder: Path, case: Case) -> int:
    """Compare with the CPU's answers; how many texts differ at a near-tie."""
    texts, scores = on_cpu(folder, case.quantization, case.dtype)
    bound = BOUNDS["int8" if case.quantization == "int8" else case.dtype]
    found = torch.tensor([generation.scores for generation in done[1::2]])
    torch.testing.assert_close(found, scores, atol=bound, rtol=1e-5)
    return assert_equal_texts(texts, [each.token_ids for each in done[::2]], bound)


@contextlib.contextmanager
def session_of(case: Case, place: Path) -> Iterator[StoreSession | None]:
    if not case.store:
        yield None
        return
    with shelf_in(place) as session:
        yield session


def run(case: Case, loaded: LoadedModel, folder: Path, store: Path) -> int:
    """Ask ``case``'s engine everything, with a store twice; how many texts differ at a near-tie."""
    ties = 0
    for turn in range(1 + case.store):
        with session_of(case, store) as session:
            done = answers(engine_of(case, loaded, session), requests_of())
            assert {generation.placement for generation in done} == {case.placement}
            ties += hold(done, folder, case)
            if session is not None:
                session.writer.flush()
                assert turn == 0 or session.tally.loaded > 0
    return ties
