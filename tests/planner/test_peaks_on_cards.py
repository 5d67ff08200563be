"""Where the plan says that it fits a card, all that it predicts of the card's memory is there."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pipeline.planner.forecast import Wish, decide
from pipeline.planner.model.shape import ModelShape
from pipeline.planner.workload import Asked, Question, TaskLoad
from pipeline.system.hardware_spec import described

GIB = 2**30
SHAPES = (
    ModelShape(36, 32, 8, 128, 2560, 9728, 151_936, 40_960),
    ModelShape(36, 32, 8, 128, 4096, 12_288, 151_936, 40_960, tied=False),
    ModelShape(32, 32, 32, 128, 4096, 11_008, 32_000, 4096, tied=False),
    ModelShape(80, 64, 8, 128, 8192, 28_672, 128_256, 131_072, tied=False),
    ModelShape(30, 9, 3, 64, 576, 1536, 49_152, 8192),
)


def test_scores_of_attention_bound_a_pass_where_no_kernel_does_without_them() -> None:
    machine, wish = described("8GiB", "64GiB"), Wish("nf4", "bfloat16", 8192)
    plainly = replace(SHAPES[0], keeps_scores=True)
    by_kernels, found = decide(SHAPES[0], machine, wish), decide(plainly, machine, wish)
    scores = plainly.scores_bytes(found.chunk_tokens, "bfloat16", 1, 8192 - found.chunk_tokens)
    assert found.chunk_tokens < by_kernels.chunk_tokens == 4096
    assert 0.05 * machine.vram_bytes < scores < found.activation_bytes < 0.4 * machine.vram_bytes
    asked = decide(plainly, machine, replace(wish, chunk_tokens=2048))
    assert asked.chunk_tokens == 2048
    assert not asked.fits or asked.activation_bytes > 4 * scores


@st.composite
def loads(draw: st.DrawFn) -> tuple[TaskLoad, ...]:
    own = draw(st.sampled_from((20, 150, 1000, 4000)))
    new, logits = draw(st.sampled_from(((0, 1), (0, 40), (0, 300), (16, 1), (500, 1))))
    question = Question(own, draw(st.sampled_from((0, 500))), new, logits)
    documents = draw(st.sampled_from((1, 64, 10_000)))
    asked = Asked(4 * own, own, (question,))
    return (TaskLoad("t", "label", documents, 4 * own * documents, (asked,) * 4),)


@given(
    shape=st.sampled_from(SHAPES),
    cards=st.sampled_from(((1,), (2,), (8,), (12,), (24,), (8, 8), (24, 12))),
    loads=st.one_of(st.just(()), loads()),
    quantization=st.sampled_from(("nf4", "int8", "none")),
    context=st.sampled_from((512, 2048, 4096)),
    placement=st.sampled_from((None, "device", "ram", "disk")),
    rows=st.sampled_from((None, 1, 200)),
)
def test_what_fits_is_no_larger_than_the_card(
    shape: ModelShape,
    cards: tuple[int, ...],
    loads: tuple[TaskLoad, ...],
    quantization: str,
    context: int,
    placement: str | None,
    rows: int | None,
) -> None:
    machine = described([f"{size}GiB" for size in cards], "64GiB", disk="nvme:500GB")
    wish = Wish(quantization, "bfloat16", context, rows=rows, loads=loads, cache_place=placement)  # type: ignore[arg-type]
    forecast = decide(shape, machine, wish)
    asked = max((question.logits for question in wish.questions), default=1)
    in_both_types = 6 * shape.vocabulary
    assert asked <= forecast.pass_logits
    assert forecast.pass_logits == asked or (
        forecast.pass_logits * in_both_types <= forecast.activation_bytes
    )
    if forecast.fits:
        assert forecast.vram_peak_bytes <= machine.vram_bytes
