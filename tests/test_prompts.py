"""Frames and splitting: the whole text is read, nothing else is ever cut, boundaries are where they should
be.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DocumentFailed
from pipeline.prompts import FrameBuilder, fits, split
from pipeline.testing.scripted_backend import ByteTokenizer


class NoSystemRole(ByteTokenizer):
    """A template that refuses a system role, as Gemma's does."""

    def render(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str | None:
        if any(message["role"] == "system" for message in messages):
            raise ValueError("System role not supported")
        return super().render(messages, options)


class NoTemplate(ByteTokenizer):
    """A base model, with a beginning-of-sequence token of its own."""

    bos_ids = (256,)

    def render(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str | None:
        return None


class Dated(ByteTokenizer):
    """A template that prints today's date, as Llama 3.2's does."""

    def render(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str | None:
        return f"<|start|>{options['strftime_now']('%d %b %Y')} {super().render(messages, options)}"


def builder(tokenizer: ByteTokenizer | None = None, layout: str = "instructions_first") -> FrameBuilder:
    return FrameBuilder(tokenizer or ByteTokenizer(), layout, {}, "2026-01-31")


@pytest.mark.parametrize("layout", ["instructions_first", "document_first"])
def test_a_frame_holds_the_parts_in_order(layout: str) -> None:
    prompt = builder(layout=layout).build("Say it.", "Answer:", system="Be brief.").around(b"DOCUMENT")
    text = ByteTokenizer().decode(prompt.ids)
    first, second = ("Say it.", "DOCUMENT") if layout == "instructions_first" else ("DOCUMENT", "Say it.")
    assert text.index("Be brief.") < text.index(first) < text.index(second)
    assert prompt.ids[-2:] == (256, 260)  # the generation marker comes last
    assert bytes(prompt.ids[prompt.prefix_tokens :][: prompt.document_tokens]) == b"DOCUMENT"


def test_the_prefix_is_the_same_for_all_documents() -> None:
    frame = builder().build("Say it.", "")
    one, two = frame.around(b"one"), frame.around(b"another")
    assert one.prefix_tokens == two.prefix_tokens > 0
    assert one.ids[: one.prefix_tokens] == two.ids[: two.prefix_tokens]


def test_a_template_without_a_system_role_gets_it_in_the_user_turn() -> None:
    frame = builder(NoSystemRole()).build("Say it.", "", system="Be brief.")
    assert "Be brief.\n\nSay it." in ByteTokenizer().decode(frame.before)
    assert any("no system role" in note for note in frame.notes)


def test_without_a_template_the_prompt_is_plain_and_says_so() -> None:
    made = builder(NoTemplate())
    frame = made.build("Say it.", "Answer:", system="Be brief.")
    assert frame.before == (256, *b"Be brief.\n\nSay it.\n\n")
    assert frame.after == tuple(b"\n\nAnswer:")
    assert frame.notes == ("no chat template: plain prompt",)
    assert made.answer("yes") == (*b" yes", 257)


def test_exactly_one_beginning_of_sequence() -> None:
    class Twice(ByteTokenizer):
        bos_ids = (256,)

    assert builder(Twice()).build("x", "").before[:2] == (256, 258)


def test_the_date_of_the_template_is_pinned() -> None:
    assert "31 Jan 2026" in ByteTokenizer().decode(builder(Dated()).build("x", "").before)


def test_a_template_that_repeats_the_message_is_refused() -> None:
    class Echo(ByteTokenizer):
        def render(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str | None:
            return (super().render(messages, options) or "") * 2

    with pytest.raises(ConfigError, match="2 times"):
        builder(Echo()).build("x", "")


def test_control_tokens_of_the_instructions_stay_text() -> None:
    frame = builder().build("Ignore this: <|end|>", "")
    assert frame.before.count(257) == 0


TEXTS = st.text(alphabet=st.sampled_from("ab .\n!é漢🙂\u2028"), max_size=400)


@given(TEXTS, st.integers(8, 60), st.integers(0, 4))
def test_parts_cover_the_whole_text_and_fit(text: str, part_tokens: int, overlap_tokens: int) -> None:
    tokenizer = ByteTokenizer()
    parts = list(split(tokenizer, text, part_tokens, overlap_tokens))
    assert parts[0].start == 0
    assert parts[-1].end == len(text)
    for before, after in itertools.pairwise(parts):
        assert before.start < after.start <= before.end < after.end
    for part in parts:
        assert len(part.ids) <= part_tokens
        assert part.ids == tuple(tokenizer.encode(text[part.start : part.end]))
    if overlap_tokens == 0:
        assert "".join(text[part.start : part.end] for part in parts) == text


@given(TEXTS, st.integers(1, 400))
def test_fits_is_the_encoding_or_nothing(text: str, room: int) -> None:
    ids = tuple(ByteTokenizer().encode(text))
    assert fits(ByteTokenizer(), text, room) == (ids if len(ids) <= room else None)


def test_cuts_prefer_paragraphs_then_sentences() -> None:
    text = "One sentence here. Another one.\n\nA new paragraph begins. It goes on for a while."
    parts = list(split(ByteTokenizer(), text, 40))
    assert text[parts[0].start : parts[0].end] == "One sentence here. Another one.\n\n"
    assert text[parts[1].start : parts[1].end] == "A new paragraph begins. "


def test_splitting_is_linear_and_lazy() -> None:
    seen = 0

    class Counting(ByteTokenizer):
        def encode(self, text: str) -> list[int]:
            nonlocal seen
            seen += len(text)
            return super().encode(text)

    text = "word " * 200_000
    first = next(iter(split(Counting(), text, 100)))
    assert first.end <= 100
    assert seen < 10_000
    seen = 0
    assert sum(1 for _ in split(Counting(), text, 1000)) >= 1000
    assert seen < 20 * len(text)


def test_one_character_of_many_tokens_is_a_failure_not_a_loop() -> None:
    with pytest.raises(DocumentFailed, match="chunk_tokens"):
        list(split(ByteTokenizer(), "漢字漢字", 2))


def test_an_unbroken_run_is_cut_where_it_must() -> None:
    parts = list(split(ByteTokenizer(), "x" * 1000, 64))
    assert "".join("x" * (part.end - part.start) for part in parts) == "x" * 1000
