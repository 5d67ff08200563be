"""Peaks: pages as the engine gives them out, files as they stay mapped, never less for more."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.packed.sequence import PAGE_TOKENS, pages_of
from pipeline.planner.forecast import Wish, decide
from pipeline.planner.memory import FileBytes, head_copy_bytes, mapped_bytes, paged_tokens, rows_bytes, stored
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.workload import Asked, Question, TaskLoad
from pipeline.system.hardware_spec import described
from tests.planner.known_models import known_shape


def demo() -> ModelShape:
    return known_shape("SmolLM2 135M")


@given(st.integers(1, 300_000))
def test_pages_are_those_of_the_engine(tokens: int) -> None:
    assert paged_tokens(tokens) == pages_of(tokens) * PAGE_TOKENS


def test_the_longest_rows_count() -> None:
    per = demo().kv_bytes_per_token("float32")
    assert rows_bytes(demo(), "float32", 2, [100, 500, 60], 3) == (512 + 112) * per
    assert rows_bytes(demo(), "float32", 8, [100, 500, 60], 3) == (512 + 112 + 64) * per
    assert rows_bytes(demo(), "float32", 4, [100, 500], 200) == 4 * 512 * per  # each stands for a hundred
    assert rows_bytes(demo(), "float32", 5, [100, 500], 200) == 5 * 512 * per
    assert rows_bytes(demo(), "float32", 4, [0, 0], 2) == 0  # nothing is written, nothing is kept


def test_files_stay_mapped_where_weights_are_used_as_they_lie() -> None:
    files = stored(demo(), "float32", "float32")
    assert files == FileBytes(demo().parameters * 4, same_numbers=True)
    shrunk = sum(weight.parameters for weight in demo().weights if weight.shrinks)
    # embeddings and norms are; what was read to be shrunk, or laid out anew, stays beside
    for quantization in ("none", "nf4", "int8"):
        assert mapped_bytes(demo(), files, quantization, "float32", working=True) == shrunk * 4


def test_files_in_other_numbers_are_mapped_while_they_are_read() -> None:
    other = stored(demo(), None, "float32")
    assert other == FileBytes(demo().parameters * 2, same_numbers=False)
    assert mapped_bytes(demo(), other, "nf4", "float32", working=False) == demo().parameters * 2
    assert mapped_bytes(demo(), other, "nf4", "float32", working=True) == 0


def test_a_head_that_is_the_embedding_is_laid_out_beside_it() -> None:
    assert head_copy_bytes(demo(), "float32", 1, on_card=False) == 49_152 * 576 * 4
    own = replace(
        demo(), tied=False
    )  # laid out in its place; where that does not pay, in passes of many logits
    assert head_copy_bytes(own, "float32", 16, on_card=False) == 0
    assert head_copy_bytes(own, "float32", 17, on_card=False) == 49_152 * 576 * 4
    assert head_copy_bytes(demo(), "float32", 17, on_card=True) == 0


def night(
    rows: int, tokens: int, documents: int, quantization: str = "none", new: int = 32, context: int = 2048
) -> int:
    load = TaskLoad(
        "t",
        "summarize",
        documents,
        documents * tokens * 4,
        (Asked(tokens * 4, tokens, (Question(tokens, 0, new),)),),
    )
    wish = Wish(quantization, "float32", context, rows=rows, loads=(load,), stored_dtype="float32")
    return decide(demo(), described(ram="32GiB"), wish).ram_peak_bytes


@given(
    st.integers(1, 64),
    st.integers(16, 1900),
    st.integers(1, 500),
    st.integers(0, 64),
    st.integers(0, 500),
    st.integers(0, 100),
)
def test_more_rows_tokens_or_documents_never_need_less(
    rows: int, tokens: int, documents: int, more_rows: int, more_documents: int, more: int
) -> None:
    least = night(rows, tokens, documents)
    assert night(rows + more_rows, tokens, documents) >= least
    assert night(rows, tokens, documents + more_documents) >= least
    assert night(rows, tokens, documents, new=32 + more) >= least


def test_the_process_is_part_of_the_peak() -> None:
    light = Wish("none", "float32", 512, process_bytes=100 * 2**20, stored_dtype="float32")
    heavy = Wish("none", "float32", 512, process_bytes=900 * 2**20, stored_dtype="float32")
    machine = described(ram="16GiB")
    assert (
        decide(demo(), machine, heavy).ram_peak_bytes - decide(demo(), machine, light).ram_peak_bytes
        == 800 * 2**20
    )
