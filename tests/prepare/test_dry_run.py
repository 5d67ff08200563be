"""The rehearsal asks what the night would ask; the sample is fair."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pipeline.prepare.dry_run import DocumentSampler, load_of, longest_row, rehearse, rough_load
from pipeline.prompts import FrameBuilder
from pipeline.records import Document, Origin, Reject
from pipeline.tasks import Setting, Task, build_task
from pipeline.tasks.label.section import LabelTask
from pipeline.tasks.summarize.section import SummarizeTask
from pipeline.testing.scripted_backend import ByteTokenizer

SENTENCE = "The ferry left the northern harbour at six in the morning. "
ORIGIN = Origin("in.jsonl", 1)


def task(context_tokens: int = 600, **options: Any) -> Task:
    setting = Setting(
        ByteTokenizer(), FrameBuilder(ByteTokenizer(), "instructions_first", {}, "2026-01-31"), context_tokens
    )
    kinds: dict[str, Any] = {"summarize": SummarizeTask, "label": LabelTask}
    return build_task(
        kinds[options["kind"]](name="t", instructions="Sum up, please.", **options), setting, {}
    )


def document(number: int, sentences: int) -> Document:
    return Document(f"d{number}", SENTENCE * sentences, ORIGIN)


def test_a_short_document_is_asked_once_behind_the_shared_instructions() -> None:
    asked = rehearse(task(kind="summarize", max_output_tokens=40), document(0, 2))
    (question,) = asked.questions
    assert question.new_tokens == 40
    assert question.shared_tokens >= 16
    assert asked.tokens == len(SENTENCE.strip()) * 2 + 1 or asked.tokens == len(SENTENCE) * 2
    assert question.own_tokens >= asked.tokens
    assert not asked.failed


def test_a_long_one_is_asked_in_parts_and_reduced() -> None:
    found = task(kind="summarize", max_output_tokens=60)
    asked = rehearse(found, document(0, 60))
    work = found.work(document(0, 60))
    parts = len(next(work))
    work.close()
    assert len(asked.questions) > parts > 1  # and the summaries are joined
    assert sum(question.own_tokens for question in asked.questions[:parts]) >= asked.tokens
    assert all(
        question.own_tokens + question.shared_tokens + question.new_tokens <= 600
        for question in asked.questions
    )


def test_a_label_tree_rides_along_and_writes_nothing() -> None:
    (question,) = rehearse(
        task(kind="label", labels=["world", "sports", "science"]), document(0, 2)
    ).questions
    # Of " "-(w-o-r-l-d | s-(p-o-r-t-s | c-i-e-n-c-e)) all but the ends are nodes.
    assert (question.new_tokens, question.row_tokens, question.logits) == (0, 0, 1 + 1 + 4 + 1 + 4 + 5)


def test_the_longest_row_is_that_of_the_longest_document_and_never_beyond_the_context() -> None:
    tasks = [task(kind="summarize", max_output_tokens=40), task(kind="label", labels=["world", "sports"])]
    sampler = DocumentSampler()
    list(sampler.watch(document(number, sentences) for number, sentences in enumerate((1, 4, 2))))
    assert sampler.longest is not None
    assert sampler.longest.id == "d1"
    longest = longest_row(tasks, sampler.longest)
    rows = [
        question.shared_tokens + question.own_tokens + question.new_tokens
        for each in tasks
        for question in rehearse(each, document(0, 4)).questions
    ]
    assert longest == max(rows)
    assert longest_row(tasks, document(0, 1)) < longest  # type: ignore[operator]
    assert longest_row(tasks, document(0, 60)) <= 600  # type: ignore[operator]
    assert longest_row(tasks, None) is None
    assert longest_row(tasks, document(0, 20_000)) is None


def test_several_questions_about_a_document_read_it_once() -> None:
    setting = Setting(
        ByteTokenizer(), FrameBuilder(ByteTokenizer(), "document_first", {}, "2026-01-31"), 2000
    )
    several = build_task(
        LabelTask(
            name="t", kind="label", instructions="Which?", labels=["world", "sports", "science"], multi=True
        ),
        setting,
        {},
    )
    questions = rehearse(several, document(0, 3)).questions
    assert [question.reads_document for question in questions] == [True, False, False]
    assert all(
        len(SENTENCE) * 3 - 2 <= question.document_tokens < question.own_tokens for question in questions
    )


def test_a_document_that_fails_is_counted_as_that() -> None:
    asked = rehearse(task(kind="summarize", max_output_tokens=40, long_documents="fail"), document(0, 60))
    assert asked.failed
    assert not asked.questions


def test_the_load_scales_with_the_documents() -> None:
    sample = [document(number, 1 + number % 7) for number in range(14)]
    characters = sum(len(each.text) for each in sample)
    once = load_of(task(kind="summarize", max_output_tokens=40), sample, 14, characters)
    tenfold = load_of(task(kind="summarize", max_output_tokens=40), sample, 140, 10 * characters)
    assert once.tokens.error == 0
    assert tenfold.tokens.value == pytest.approx(10 * once.tokens.value)
    assert once.questions_a_document == 1


def test_every_document_is_as_likely_in_the_sample() -> None:
    seen: Counter[str] = Counter()
    for seed in range(400):
        sampler = DocumentSampler(size=5, seed=seed)
        items = [
            *(Document(f"d{number}", "x" * (number + 1), ORIGIN) for number in range(20)),
            Reject(ORIGIN, "not a document"),
        ]
        assert len(list(sampler.watch(items))) == 21
        assert (sampler.documents, sampler.characters, sampler.rejected) == (20, 210, 1)
        assert len(sampler.sample) == 5
        seen.update(each.id for each in sampler.sample)
    assert len(seen) == 20
    assert max(seen.values()) < 2 * min(seen.values())  # 100 each, with a deviation of 9


def test_without_a_tokenizer_characters_must_do() -> None:
    sampler = DocumentSampler()
    list(sampler.watch([Document("a", "x" * 400, ORIGIN), Document("b", "x" * 8000, ORIGIN)]))
    load = rough_load("t", "summarize", sampler, 1024, 64)
    assert [asked.tokens for asked in load.sample] == [100, 2000]
    assert [len(asked.questions) for asked in load.sample] == [
        1,
        4,
    ]  # three parts of at most 704 tokens, and their summary
