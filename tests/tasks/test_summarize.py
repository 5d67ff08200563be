"""Summaries: whole, in parts, refined, refused or cut: the whole text is read, or the answer says what was
not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.prompts import FrameBuilder
from pipeline.records import Generation, Step
from pipeline.tasks import Setting, build_task
from pipeline.tasks.summarize.section import SummarizeTask
from pipeline.testing.scripted_backend import ByteTokenizer
from tests.tasks.conftest import Driver

SENTENCE = "The ferry left the northern harbour at six in the morning. "


def says(text: str) -> Callable[[Step], Generation]:
    return lambda step: Generation(1, tuple(text.encode()))


def test_a_short_document_is_one_question(drive: Callable[..., Driver]) -> None:
    driver = drive(kind="summarize", instructions="Sum up, as told.", max_output_tokens=64)
    answer = driver.answer("A short text.")
    assert "Sum up, as told." in ByteTokenizer().decode(driver.asked[0].prompt.ids)
    assert [step.name for step in driver.asked] == ["whole"]
    assert "A short text." in ByteTokenizer().decode(driver.asked[0].prompt.ids)
    assert isinstance(answer.value, str)
    assert answer.value.startswith("summary ")
    assert answer.parts == 1


@given(st.integers(1, 120), st.integers(500, 900))
@settings(max_examples=25, deadline=None)
def test_map_reduce_reads_everything_and_ends(sentences: int, context_tokens: int) -> None:
    text = "".join(f"{number}. {SENTENCE}" for number in range(sentences))
    setting = Setting(
        ByteTokenizer(), FrameBuilder(ByteTokenizer(), "instructions_first", {}, "2026-01-31"), context_tokens
    )
    config = SummarizeTask(name="t", kind="summarize", instructions="Sum up.", max_output_tokens=60)
    driver = Driver(build_task(config, setting, {}), lambda step: None)
    answer = driver.answer(text)
    spans = sorted(step.span for step in driver.asked if step.span)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    assert all(before[1] >= after[0] for before, after in itertools.pairwise(spans))
    # all decode
    assert all(len(step.prompt.ids) + step.ask.max_new_tokens <= context_tokens for step in driver.asked)  # type: ignore[union-attr]
    assert answer.parts == len(spans)


def test_the_reduction_is_hierarchical_where_one_prompt_cannot_hold_all(drive: Callable[..., Driver]) -> None:
    driver = drive(kind="summarize", instructions="Sum up.", max_output_tokens=60)
    driver.answer("".join(f"{number}. {SENTENCE}" for number in range(100)))
    levels = {step.name.split("/")[1] for step in driver.asked if step.name.startswith("reduce/")}
    assert len(levels) >= 2


def test_refine_carries_one_summary_through_the_parts(drive: Callable[..., Driver]) -> None:
    driver = drive(
        kind="summarize",
        long_documents="refine",
        instructions="Sum up.",
        max_output_tokens=60,
        context_tokens=700,
        reply=lambda step: Generation(1, f"after {step.name} {{braces}}".encode()),
    )
    answer = driver.answer("".join(f"{number}. {SENTENCE}" for number in range(20)))
    assert len(driver.asked) > 2
    for before, step in zip(driver.asked, driver.asked[1:], strict=False):
        assert f"after {before.name} {{braces}}" in ByteTokenizer().decode(step.prompt.ids)
        assert len(step.prompt.ids) + 60 <= 700
    assert answer.value == f"after {driver.asked[-1].name} {{braces}}"


def test_fail_and_truncate_say_the_numbers(drive: Callable[..., Driver]) -> None:
    text = SENTENCE * 30
    failure = drive(kind="summarize", long_documents="fail").failure(text)
    assert failure.kind == "too_long"
    assert f"{len(text):,} tokens" in str(failure)
    driver = drive(kind="summarize", long_documents="truncate", instructions="Sum up.")
    answer = driver.answer(text)
    assert answer.tokens_in + answer.tokens_dropped == len(text)
    assert answer.tokens_dropped > 0
    assert driver.asked[0].prompt.ids[-2:] == (256, 260)  # the marker is never what is cut


def test_too_many_parts_fail_with_the_limit(drive: Callable[..., Driver]) -> None:
    failure = drive(kind="summarize", instructions="Sum up.", max_output_tokens=60, max_parts=3).failure(
        SENTENCE * 200
    )
    assert failure.kind == "too_long"
    assert "max_parts = 3" in str(failure)


def test_instructions_that_leave_no_room_fail(drive: Callable[..., Driver]) -> None:
    with pytest.raises(ConfigError, match="leave"):  # told before the night
        drive(kind="summarize", instructions="x" * 500)
    failure = drive(kind="summarize", instructions="{{ id }}" + "x" * 500).failure("A text.")
    assert failure.kind == "too_long"
    assert "leave" in str(failure)


def short_of_memory(most_tokens: int) -> Callable[[Step], Generation | None]:
    error = ("out_of_memory", f"more than {most_tokens} tokens do not fit")
    return lambda step: Generation(1, error=error) if len(step.prompt.ids) > most_tokens else None


@pytest.mark.parametrize("policy", ["map_reduce", "refine"])
def test_what_does_not_fit_in_memory_is_read_in_parts(drive: Callable[..., Driver], policy: str) -> None:
    text = "".join(f"{number}. {SENTENCE}" for number in range(14))
    keys = {
        "kind": "summarize",
        "instructions": "Sum up.",
        "max_output_tokens": 30,
        "long_documents": policy,
        "context_tokens": 1400,
    }
    whole = drive(**keys).answer(text)
    assert whole.parts == 1
    assert not whole.notes
    driver = drive(**keys, reply=short_of_memory(700))
    answer = driver.answer(text)
    assert answer.parts > 1
    assert answer.tokens_in >= whole.tokens_in
    assert any("ran short of memory: read in parts" in note for note in answer.notes)
    spans = sorted(step.span for step in driver.asked if step.span and len(step.prompt.ids) <= 700)
    assert (spans[0][0], max(end for _, end in spans)) == (0, len(text))
    # a run that was cut short asks the same
    assert answer == drive(**keys, reply=short_of_memory(700)).answer(text)


@pytest.mark.parametrize(("policy", "asked"), [("map_reduce", 3), ("fail", 1), ("truncate", 1)])
def test_what_never_fits_in_memory_fails_with_the_models_words(
    drive: Callable[..., Driver], policy: str, asked: int
) -> None:
    driver = drive(
        kind="summarize",
        instructions="Sum up.",
        max_output_tokens=30,
        long_documents=policy,
        reply=short_of_memory(0),
    )
    failure = driver.failure(SENTENCE * 5)
    assert failure.kind == "out_of_memory"
    assert "more than 0 tokens do not fit" in str(failure)
    assert len({step.name.split("/")[0] for step in driver.asked}) <= 2
    assert len(driver.asked) >= asked


@pytest.mark.parametrize("written", ["", "  \n", "<think>much thought</think>  "])
def test_nothing_written_is_a_failure(drive: Callable[..., Driver], written: str) -> None:
    assert drive(kind="summarize", reply=says(written)).failure("A text.").kind == "empty_answer"


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("<think>a</think>The answer.", "The answer."),
        ("still thinking</think>\n\nThe answer.", "The answer."),
        ("<think>a</think>b</think>The answer.", "The answer."),
        ("<THINKING>a\nb</THINKING> The answer.", "The answer."),
        ("The <b>answer</b> is 3 < 4.", "The <b>answer</b> is 3 < 4."),
    ],
)
def test_reasoning_is_stripped(drive: Callable[..., Driver], written: str, kept: str) -> None:
    assert drive(kind="summarize", reply=says(written)).answer("A text.").value == kept


def test_unfinished_reasoning_is_incomplete(drive: Callable[..., Driver]) -> None:
    assert drive(kind="summarize", reply=says("<think>and then")).failure("A text.").kind == "incomplete"


def test_instructions_are_a_template_over_the_documents_fields(drive: Callable[..., Driver]) -> None:
    driver = drive(
        kind="summarize",
        instructions="Sum up for {{ reader }}{% if pages %} in {{ pages }} pages{% endif %}.",
    )
    assert driver.task.job.fields == ("pages", "reader")
    driver.answer("A text.", reader="<|end|>", pages=3)
    assert "Sum up for <|end|> in 3 pages." in ByteTokenizer().decode(driver.asked[0].prompt.ids)
    assert driver.asked[0].prompt.ids.count(257) == 1  # the template's own; the field's stays text
    assert driver.failure("A text.", pages=3).kind == "missing_field"


@pytest.mark.parametrize("text", ["{{ text }}", "{% if %}", "{{ a.b( }}"])
def test_wrong_templates_are_refused_at_the_start(drive: Callable[..., Driver], text: str) -> None:
    with pytest.raises(ConfigError):
        drive(kind="summarize", instructions=text)


def test_templates_cannot_reach_python(drive: Callable[..., Driver]) -> None:
    with pytest.raises(ConfigError, match="template"):
        drive(kind="summarize", instructions="{{ ''.__class__.__mro__[1].__subclasses__() }}")
    driver = drive(kind="summarize", instructions="{{ id.__class__.__mro__[1].__subclasses__() }}")
    assert driver.failure("A text.").kind in ("template", "missing_field")


def test_a_template_that_always_fails_is_told_before_the_night(drive: Callable[..., Driver]) -> None:
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        drive(kind="summarize", instructions="{{ 1 / 0 }}")


def test_the_identity_changes_with_a_word_but_not_with_the_name() -> None:
    def fingerprint(**keys: Any) -> str:
        setting = Setting(
            ByteTokenizer(), FrameBuilder(ByteTokenizer(), "instructions_first", {}, "2026-01-31"), 600
        )
        return build_task(
            SummarizeTask.model_validate({"kind": "summarize", "name": "t", **keys}), setting, {}
        ).job.fingerprint

    assert fingerprint() == fingerprint(name="other")
    assert fingerprint() != fingerprint(instructions="Sum up.")
    assert fingerprint() != fingerprint(max_output_tokens=5)
