"""Documents' caches on disk: the plan says what the store and the engine will do, in their own sizes and by
their own comparison.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.planner.budget import StoreWish, Wish
from pipeline.planner.forecast import Forecast, decide, describe
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.roofline import Speed, prefill_seconds
from pipeline.planner.store_policy import crossover_tokens, document_bytes
from pipeline.planner.workload import Asked, Question, TaskLoad
from pipeline.stores.kv.io_speed import worth_loading
from pipeline.stores.kv.sizes import entry_bytes, queued_bytes
from pipeline.system.hardware import Disk, Rates
from pipeline.system.hardware_spec import described
from tests.planner.known_models import known_shape
from tests.planner.loads import load_of


def llama() -> ModelShape:
    return known_shape("Llama 2 7B")


def gemma() -> ModelShape:
    return known_shape("Gemma 2 9B")


MACHINE = replace(described("24GiB", "64GiB"), disks=(Disk("/", 2 * 10**12),))
WISH = Wish("none", "float16", 4096)


def forecast(tokens: int = 2000, **wish: Any) -> Forecast:
    store = StoreWish(wish.pop("quota", 10**12), wish.pop("documents", "auto"))
    given = {
        "questions_asked": 3,
        "layout": "document_first",
        "loads": (load_of([tokens] * 50, 50, 64, instructions=100, shared=100),),
        **wish,
    }
    return decide(known_shape("Llama 3 8B"), MACHINE, replace(WISH, store=store, **given))


def words(found: Forecast) -> str:
    return "\n".join(describe(found))


def test_a_document_takes_what_the_store_says() -> None:
    assert document_bytes(llama(), 1000, WISH) == entry_bytes([(32, 128, 128)] * 32, 1000, element_bytes=2)
    small = document_bytes(llama(), 1000, replace(WISH, store=StoreWish(storage_format="int4")))
    assert small < document_bytes(llama(), 1000, WISH) / 3
    assert document_bytes(llama(), 1000, WISH) == pytest.approx(llama().kv_bytes(1000, "float16"), rel=0.01)


def test_windows_are_stored_as_far_as_they_reach() -> None:
    assert document_bytes(gemma(), 8000, WISH) == pytest.approx(gemma().kv_bytes(8000, "float16"), rel=0.01)
    grown = document_bytes(gemma(), 8001, WISH) - document_bytes(gemma(), 8000, WISH)
    assert grown == pytest.approx(gemma().growing_bytes_per_token("float16"), rel=0.01)


@given(st.floats(1e7, 1e11), st.floats(1e11, 1e15))
def test_the_crossover_is_where_the_store_changes_its_mind(disk: float, matmul: float) -> None:
    speed = Speed(Rates("a test", 1e12, matmul, disk), 1.0, 1.0)
    found = crossover_tokens(llama(), speed, WISH)

    def pays(tokens: int) -> bool:
        return worth_loading(
            document_bytes(llama(), tokens, WISH),
            disk,
            tokens,
            tokens / prefill_seconds(llama(), tokens, speed),
        )

    if found is None:
        assert not pays(1 << 20)
    else:
        assert pays(found)
        assert pays(2 * found)
        assert found == 64 or not pays(found - 1)


def test_a_store_that_was_measured_counts_more_than_the_disk() -> None:
    speed = Speed(Rates("a test", 1e12, 1e14, 3e9), 1.0, 1.0)
    fast = crossover_tokens(llama(), speed, WISH)
    slow = crossover_tokens(llama(), speed, replace(WISH, store=StoreWish(read_bytes_per_second=1e9)))
    assert fast is not None
    assert slow is None or slow > fast


def test_on_a_slow_disk_a_calibrated_model_never_loads() -> None:
    speed = Speed(Rates("bench", 1e12, 1e14, 1e6, prefill_tokens_per_second=1000.0))
    assert crossover_tokens(llama(), speed, WISH) is None


def test_what_is_asked_again_is_kept() -> None:
    several = forecast()
    assert several.keep_documents
    assert several.store_bytes == 50 * document_bytes(known_shape("Llama 3 8B"), 2000, WISH)
    assert several.disk_peak_bytes == several.store_bytes
    assert "the document comes first" in words(several)


def test_what_waits_to_be_written_is_in_the_ram_of_the_plan() -> None:
    kept, none = forecast(), forecast(documents="never")
    batch = kept.batch_tokens * known_shape("Llama 3 8B").kv_bytes_per_token(WISH.dtype)
    assert kept.ram_peak_bytes - none.ram_peak_bytes == queued_bytes(batch) > 2**26
    few = forecast(quota=2**20)
    assert few.ram_peak_bytes - none.ram_peak_bytes == 2**20


def test_what_is_not_asked_again_is_not_kept_unless_the_user_says_so() -> None:
    assert not forecast(questions_asked=1, layout="instructions_first").keep_documents
    beside = forecast(layout="instructions_first")
    assert not beside.keep_documents
    assert "puts instructions first" in words(beside)
    assert forecast(questions_asked=1, documents="always").keep_documents
    assert forecast(documents="never").disk_peak_bytes == 0


def test_a_quota_is_a_limit() -> None:
    small = forecast(quota=10**9)
    assert small.disk_peak_bytes == 10**9
    assert "raise kv_cache.store.quota" in words(small)
    off = forecast(quota=0)
    assert not off.keep_documents
    assert "quota is 0" in words(off)


def test_short_documents_do_not_pay() -> None:
    found = forecast(5)
    assert not found.keep_documents
    assert "only beyond" in words(found)


def test_a_later_task_reads_only_its_question_when_documents_come_first() -> None:
    def loads(*, first: bool) -> tuple[TaskLoad, ...]:
        question = Question(1060, 0, 0, 3, document_tokens=1000 if first else 0)
        return tuple(
            TaskLoad(name, "label", 50, 200_000, (Asked(4000, 1000, (question,)),) * 3) for name in ("a", "b")
        )

    shared = forecast(questions_asked=2, loads=loads(first=True))
    apart = forecast(questions_asked=2, loads=loads(first=False), layout="instructions_first")
    assert shared.tasks[0].read_seconds.value == pytest.approx(apart.tasks[0].read_seconds.value)
    assert shared.tasks[1].read_seconds.value < apart.tasks[1].read_seconds.value / 5
