"""The engine's queue, and its way out of every failure."""

from __future__ import annotations

import dataclasses
import errno
import gc
import os
import subprocess
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engine.interface import Engine
from pipeline.engine.kv import disk_layer
from pipeline.engine.kv.cache import OffloadedCache
from pipeline.engine.kv.disk_layer import DiskLayer
from pipeline.engine.static.engine import StaticEngine
from pipeline.errors import OutOfMemory
from pipeline.records import Decode, Generation, Plan, Request, Score
from tests.equivalence.families import VOCABULARY, prompts, tiny_model

PLAN = Plan("float32", "none", "device", "instructions_first", 256, 8, 10_000, 400, 1)
SMALL_DISK_BYTES = 128 * 1024
LENGTHS = (40, 38, 36, 34, 32, 30, 28, 26)
ASK = Decode(6)
LABELS = Score(((5,), (6, 7), (6, 8, 9)))


class Guarded(torch.nn.Module):
    """A real model behind a check of each call, which may raise (as the allocator or a broken kernel
    would).
    """

    def __init__(self, check: Callable[[torch.Tensor, torch.Tensor, Any], None]) -> None:
        super().__init__()
        self.inner = tiny_model("llama (GQA)")
        self.config = self.inner.config
        self.check = check

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any,
        position_ids: Any,
        cache: Any,
        logits_to_keep: int,
        **rest: Any,
    ) -> Any:
        self.check(input_ids, attention_mask, cache)
        return self.inner(
            input_ids, attention_mask, position_ids, cache, logits_to_keep=logits_to_keep, **rest
        )


def exhaust_memory() -> None:
    """The real error of the real allocator."""
    torch.empty(2**58)


def engine_with(
    check: Callable[[torch.Tensor, torch.Tensor, Any], None], plan: Plan = PLAN, kv_folder: Path | None = None
) -> StaticEngine:
    return StaticEngine(Guarded(check), plan, end_ids=[2], pad_id=0, kv_folder=kv_folder)


def requests(ask: Decode | Score = ASK, lengths: tuple[int, ...] = LENGTHS) -> list[Request]:
    return [Request(index, prompt, ask) for index, prompt in enumerate(prompts(lengths))]


def finished(engine: StaticEngine, asked: list[Request]) -> list[Generation]:
    engine.admit(asked)
    done: list[Generation] = []
    for _ in range(200):
        if engine.idle:
            break
        done += engine.step()
    assert engine.idle
    assert sorted(generation.request_id for generation in done) == sorted(
        request.request_id for request in asked
    )
    return sorted(done, key=lambda generation: generation.request_id)


@pytest.fixture(scope="module")
def plain() -> list[Generation]:
    return finished(
        engine_with(lambda ids, mask, cache: None, dataclasses.replace(PLAN, max_batch_rows=1)), requests()
    )


def texts(generations: list[Generation]) -> list[tuple[int, ...]]:
    return [generation.token_ids for generation in generations]


def test_runs_decodes_and_scores_together(plain: list[Generation]) -> None:
    engine: Engine = engine_with(lambda ids, mask, cache: None)
    assert isinstance(engine, StaticEngine)
    scored = [
        dataclasses.replace(request, request_id=request.request_id + 100, ask=LABELS)
        for request in requests()
    ]
    done = finished(engine, requests() + scored)
    assert texts(done[:8]) == texts(plain)
    assert {generation.batch_rows for generation in done} == {8}
    assert all(len(generation.scores) == 3 and max(generation.scores) < 0 for generation in done[8:])
    assert all(generation.seconds > 0 for generation in done)
    assert [generation.prompt_tokens for generation in done] == [*LENGTHS, *LENGTHS]


def test_released_requests_are_forgotten() -> None:
    engine = engine_with(lambda ids, mask, cache: None)
    engine.admit([*requests(), Request(50, (), ASK)])
    engine.release([0, 3, 50, 999])
    done = []
    while not engine.idle:
        done += engine.step()
    assert sorted(generation.request_id for generation in done) == [1, 2, 4, 5, 6, 7]


def test_out_of_memory_halves_the_batch_and_is_remembered(plain: list[Generation]) -> None:
    rows_tried: list[int] = []

    def check(ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> None:
        rows_tried.append(len(ids))
        if len(ids) > 2:
            exhaust_memory()

    engine = engine_with(check)
    done = finished(engine, requests())
    assert texts(done) == texts(plain)
    assert {generation.batch_rows for generation in done} == {2}
    rows_tried.clear()
    finished(engine, [Request(index, prompt, ASK) for index, prompt in enumerate(prompts((40,) * 6))])
    assert max(rows_tried) == 2  # batches at least as long are not tried larger again


@pytest.mark.parametrize(
    "error", [MemoryError("no room"), torch.OutOfMemoryError("CUDA out of memory."), OutOfMemory("asked for")]
)
def test_every_kind_of_out_of_memory_is_known(error: Exception, plain: list[Generation]) -> None:
    def check(ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> None:
        if len(ids) > 4:
            raise error

    assert texts(finished(engine_with(check), requests())) == texts(plain)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of ``SMALL_DISK_BYTES``."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("no file system of a chosen size can be made here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_full_disk_under_the_cache_halves_the_batch_too(small_disk: Path, plain: list[Generation]) -> None:
    plan = dataclasses.replace(PLAN, placement="disk")
    done = finished(engine_with(lambda ids, mask, cache: None, plan, small_disk), requests())
    assert texts(done) == texts(plain)
    assert max(generation.batch_rows for generation in done) < len(LENGTHS)
    disk_layer._prefetcher.submit(
        int
    ).result()  # what reads ahead holds the last batch's files until it is done
    filler = os.open(small_disk / "filler", os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(filler, 0, SMALL_DISK_BYTES - 4096)
    os.close(filler)
    (found,) = finished(engine_with(lambda ids, mask, cache: None, plan, small_disk), requests(ASK, (40,)))
    assert found.error is not None
    assert (found.error[0], "No space left" in found.error[1]) == ("disk_full", True)


@pytest.mark.parametrize("ask", [ASK, LABELS])
def test_alone_then_smaller_passes_then_offloaded_then_on_disk(ask: Decode | Score) -> None:
    def small_passes_only(ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> None:
        if ids.shape[1] > 20:
            exhaust_memory()

    def offloaded_only(ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> None:
        if not isinstance(cache, OffloadedCache):
            exhaust_memory()

    def disk_only(ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> None:
        if not isinstance(cache.layers[0], DiskLayer):
            exhaust_memory()

    plan = dataclasses.replace(PLAN, prefill_chunk_tokens=64)
    expected = finished(engine_with(lambda ids, mask, cache: None), requests(ask, (40,)))[0]
    for check, placement in (
        (small_passes_only, "device"),
        (offloaded_only, "offloaded"),
        (disk_only, "disk"),
    ):
        [found] = finished(engine_with(check, plan), requests(ask, (40,)))
        assert found.placement == placement
        assert found.error is None
        assert found.token_ids == expected.token_ids
        assert found.scores == pytest.approx(expected.scores, abs=1e-4)


def test_the_rung_that_held_is_told_and_remembered() -> None:
    tried: list[str] = []

    def disk_only(ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> None:
        tried.append(type(cache.layers[0]).__name__)
        if not isinstance(cache.layers[0], DiskLayer) and mask.shape[1] >= 40:
            exhaust_memory()

    engine = engine_with(disk_only, dataclasses.replace(PLAN, prefill_chunk_tokens=64))
    [first] = finished(engine, requests(ASK, (40,)))
    assert first.notes == ("ran short of memory: read in smaller passes, its KV cache on disk",)
    assert len(set(tried)) > 1
    tried.clear()
    [second] = finished(engine, requests(ASK, (44,)))
    assert set(tried) == {"DiskLayer"}  # no time is lost on what did not do for a shorter one
    assert second.placement == "disk"
    [short] = finished(engine, requests(ASK, (20,)))
    assert (short.placement, short.notes) == ("device", ())


@pytest.mark.parametrize("allowed", [False, True])
def test_quantized_only_where_answers_may_change(allowed: bool) -> None:
    def quantized_only(ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> None:
        if "Quantized" not in type(cache.layers[0]).__name__:
            exhaust_memory()

    engine = engine_with(quantized_only, dataclasses.replace(PLAN, lossy_last_resort=allowed))
    [found] = finished(engine, requests(ASK, (40,)))
    if allowed:
        assert (found.placement, found.error) == ("quantized", None)
        assert found.notes == ("ran short of memory: read in smaller passes, its KV cache quantized",)
    else:
        assert found.error is not None
        assert found.error[0] == "out_of_memory"


@pytest.mark.parametrize(("placement", "kind"), [("disk", "disk_full"), ("device", "out_of_memory")])
def test_a_full_disk_is_not_the_documents_fault(placement: Any, kind: str) -> None:
    def full(ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> None:
        if isinstance(cache.layers[0], DiskLayer):
            raise OSError(errno.ENOSPC, "No space left on device")
        exhaust_memory()

    [found] = finished(
        engine_with(full, dataclasses.replace(PLAN, placement=placement)), requests(ASK, (40,))
    )
    assert found.error is not None
    assert found.error[0] == kind


def test_what_never_fits_is_a_record_and_the_others_go_on(plain: list[Generation]) -> None:
    def check(ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> None:
        if bool((ids == prompts(LENGTHS)[2][-1]).any()) and mask.shape[1] >= 36 and ids.shape[1] > 1:
            exhaust_memory()

    asked = requests()
    marked = prompts(LENGTHS)[2][-1]
    clean = [request for request in asked if request.request_id == 2 or marked not in request.ids]
    done = {generation.request_id: generation for generation in finished(engine_with(check), clean)}
    assert done[2].error is not None
    assert done[2].error[0] == "out_of_memory"
    assert "36 tokens" in done[2].error[1]
    assert done[2].finish_reason == "error"
    for request in clean:
        if request.request_id != 2:
            assert done[request.request_id].token_ids == plain[request.request_id].token_ids


def test_memory_of_a_failed_attempt_is_freed() -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def check(ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> None:
        alive.append(sum(reference() is not None for reference in held))
        if len(ids) > 1 and cache.layers[0].keys is not None:
            held.append(weakref.ref(cache.layers[0].keys))
            exhaust_memory()

    gc.disable()
    try:
        finished(engine_with(check), requests())
    finally:
        gc.enable()
    assert len(held) == 3  # 8, 4 and 2 rows
    assert alive[-1] == 0


def test_an_exception_of_the_model_is_a_record_of_its_row_only(plain: list[Generation]) -> None:
    def check(ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> None:
        if (mask.sum(1) == LENGTHS[3]).any() and ids.shape[1] > 1:
            raise ValueError("shapes of the third kind")

    done = finished(engine_with(check), requests())
    assert done[3].error == (
        "model_error",
        "The model raised ValueError on this prompt: shapes of the third kind",
    )
    assert texts(done[:3] + done[4:]) == texts(plain[:3] + plain[4:])


def test_numbers_that_break_only_in_company_are_tried_alone(plain: list[Generation]) -> None:
    engine = engine_with(lambda ids, mask, cache: None)
    inner = engine._forward.model.inner

    def poison(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if len(output.logits) == len(LENGTHS):
            output.logits[4] = float("nan")

    inner.register_forward_hook(poison, with_kwargs=True)
    assert texts(finished(engine, requests())) == texts(plain)


def test_numbers_that_stay_broken_are_a_record() -> None:
    engine = engine_with(lambda ids, mask, cache: None)
    with torch.no_grad():
        engine._forward.model.inner.lm_head.weight[7] = float("nan")
    for ask in (ASK, LABELS):
        for generation in finished(engine, requests(ask)):
            assert generation.error is not None
            assert generation.error[0] == "non_finite_logits"
            assert (generation.finish_reason, generation.token_ids, generation.scores) == ("error", (), ())


def test_interrupts_are_not_swallowed() -> None:
    def check(ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> None:
        raise KeyboardInterrupt

    engine = engine_with(check)
    engine.admit(requests())
    with pytest.raises(KeyboardInterrupt):
        engine.step()


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (Request(1, (5,) * 251, Decode(6)), "too_long"),
        (Request(1, (5,) * 254, Score(((5,), (6, 7, 8)))), "too_long"),
        (Request(1, (), Decode(6)), "empty_request"),
        (Request(1, (5,), Decode(0)), "empty_request"),
        (Request(1, (5,), Score(())), "empty_request"),
        (Request(1, (5,), Score(((5,), ()))), "empty_request"),
        (Request(1, (5, VOCABULARY), Decode(6)), "unknown_token"),
        (Request(1, (5, -1), Decode(6)), "unknown_token"),
        (Request(1, (5,), Score(((VOCABULARY,),))), "unknown_token"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_a_sentence(request_: Request, kind: str) -> None:
    engine = engine_with(lambda ids, mask, cache: None)
    others = [Request(2, (5,) * 250, Decode(6)), Request(3, (5,) * 253, Score(((5,), (6, 7, 8))))]
    done = finished(engine, [request_, *others])
    assert done[0].error is not None
    assert done[0].error[0] == kind
    assert done[0].error[1].endswith(".")
    assert [generation.error for generation in done[1:]] == [None, None]
