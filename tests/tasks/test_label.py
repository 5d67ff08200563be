"""Labels: always one of them, with probabilities that add up; long documents pooled; wrong sets of labels
refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records import Generation, Score, Step
from pipeline.tasks.label.task import pool, softmax
from pipeline.testing.scripted_backend import ByteTokenizer
from tests.tasks.conftest import Driver

SENTENCE = "The ferry left the northern harbour at six in the morning. "


def scored(*scores: float) -> Callable[[Step], Generation]:
    return lambda step: Generation(1, scores=scores)


def test_the_best_scored_label_wins_with_its_probability(drive: Callable[..., Driver]) -> None:
    answer = drive(
        kind="label", labels=["a", "b", "c"], reply=scored(math.log(0.02), math.log(0.06), math.log(0.02))
    ).answer("A text.")
    assert answer.value == "b"
    assert answer.probabilities == pytest.approx({"a": 0.2, "b": 0.6, "c": 0.2})


def test_whole_sequences_are_scored_and_one_that_begins_another_with_the_end_of_turn(
    drive: Callable[..., Driver],
) -> None:
    driver = drive(kind="label", labels=["relevant", "irrelevant", "rel"])
    driver.answer("A text.")
    ask = driver.asked[0].ask
    assert isinstance(ask, Score)
    assert ask.continuations == (tuple(b" relevant"), tuple(b" irrelevant"), (*b" rel", 257))


def test_descriptions_are_shown_and_names_kept(drive: Callable[..., Driver]) -> None:
    driver = drive(kind="label", labels={"a": "about apples", "b": None})
    assert driver.answer("A text.").value in ("a", "b")
    assert "- a: about apples\n- b\n" in ByteTokenizer().decode(driver.asked[0].prompt.ids)


def test_abstaining(drive: Callable[..., Driver]) -> None:
    answer = drive(kind="label", labels=["a", "b"], abstain_below=0.9, reply=scored(-1.0, -1.1)).answer(
        "A text."
    )
    assert answer.value is None
    assert answer.finish_reason == "abstained"
    assert answer.probabilities is not None
    assert (
        drive(kind="label", labels=["a", "b"], abstain_below=0.9, reply=scored(-1.0, -9.0))
        .answer("A text.")
        .value
        == "a"
    )


def test_long_documents_are_pooled_over_their_parts(drive: Callable[..., Driver]) -> None:
    driver = drive(kind="label", labels=["a", "b"], instructions="Which?")
    text = "".join(f"{number}. {SENTENCE}" for number in range(30))
    answer = driver.answer(text)
    assert answer.parts == len(driver.asked) > 2
    assert driver.asked[0].span is not None
    assert driver.asked[-1].span is not None
    assert (driver.asked[0].span[0], driver.asked[-1].span[1]) == (0, len(text))
    assert answer.probabilities is not None
    assert sum(answer.probabilities.values()) == pytest.approx(1)


def test_fail_and_truncate_say_the_numbers(drive: Callable[..., Driver]) -> None:
    text = SENTENCE * 30
    failure = drive(kind="label", labels=["a", "b"], long_documents="fail").failure(text)
    assert failure.kind == "too_long"
    answer = drive(kind="label", labels=["a", "b"], long_documents="truncate").answer(text)
    assert answer.tokens_in + answer.tokens_dropped == len(text)


def test_what_does_not_fit_in_memory_is_read_in_parts(drive: Callable[..., Driver]) -> None:
    def scarce(step: Step) -> Generation | None:
        return Generation(1, error=("out_of_memory", "no room")) if len(step.prompt.ids) > 350 else None

    text = " ".join(f"word{number}" for number in range(60))
    keys = {"kind": "label", "labels": ["world", "sports"], "instructions": "Which?"}
    answer = drive(**keys, reply=scarce).answer(text)
    assert answer.parts > 1 == drive(**keys).answer(text).parts
    assert any("ran short of memory" in note for note in answer.notes)
    assert drive(**keys, long_documents="fail", reply=scarce).failure(text).kind == "out_of_memory"


def test_multi_asks_about_each_label(drive: Callable[..., Driver]) -> None:
    def reply(step: Step) -> Generation:
        return Generation(1, scores=(-1.0, -3.0) if step.name.endswith(("/b", "/c")) else (-3.0, -1.0))

    driver = drive(kind="label", labels=["a", "b", "c"], multi=True, reply=reply)
    answer = driver.answer("A text.")
    assert answer.value == ["b", "c"]
    assert [step.name for step in driver.asked] == ["score/0/a", "score/0/b", "score/0/c"]
    assert answer.probabilities is not None
    assert answer.probabilities["b"] == pytest.approx(1 / (1 + math.exp(-2)))


@given(st.lists(st.floats(-1e4, 0), min_size=1, max_size=9))
def test_softmax_is_a_distribution(scores: list[float]) -> None:
    assert sum(softmax(scores)) == pytest.approx(1)
    assert max(softmax(scores)) == softmax(scores)[scores.index(max(scores))]


@given(
    st.lists(
        st.tuples(st.lists(st.floats(-50, 0), min_size=3, max_size=3), st.integers(0, 500)),
        min_size=1,
        max_size=6,
    )
)
def test_a_pool_of_distributions_is_one(rows: list[tuple[list[float], int]]) -> None:
    pooled = pool([softmax(scores) for scores, _ in rows], [weight for _, weight in rows])
    assert sum(pooled) == pytest.approx(1)
