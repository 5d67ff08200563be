"""What every task is made of: a generator of steps a document, instructions as templates, and reading the
model's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jinja2
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pipeline.config import identity_of
from pipeline.errors import ConfigError, DocumentFailed
from pipeline.prompts import FrameBuilder, Part, Tokenizer, count_tokens, split
from pipeline.records import Answer, Decode, Document, Generation, Sampling, Step, TaskJob, digest

Work = Generator[Sequence[Step], Sequence[Generation], Answer]
"""A document's way through a task: yields questions, is sent their replies in order, returns the answer or
raises DocumentFailed.

A question that has no answer raises DocumentFailed in it. Deterministic: with the same replies it asks the
same questions, so a run that was cut short replays it from recorded replies.
"""


class Task(Protocol):
    """One task of the configuration, bound to a model's tokenizer and context. Pure: no model, no files."""

    job: TaskJob
    notes: tuple[str, ...]

    def work(self, document: Document) -> Work:
        """Start the work on one document."""
        ...


class Setting:
    """What tasks share: the model's tokenizer and frames, its context in tokens, and how text is
    generated.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        frames: FrameBuilder,
        context_tokens: int,
        sampling: Sampling | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.frames = frames
        self.context_tokens = context_tokens
        self._sampling = sampling

    def decode(self, document: Document, step: str, max_new_tokens: int) -> Decode:
        """Greedy, or sampled with a seed of this document and step alone."""
        if self._sampling is None:
            return Decode(max_new_tokens)
        seed = int(digest(str(self._sampling.seed), document.key, step)[:15], 16)
        return Decode(
            max_new_tokens,
            Sampling(self._sampling.temperature, self._sampling.top_p, self._sampling.top_k, seed),
        )


class Instructions:
    """Instructions of a task: plain text or a Jinja2 template (sandboxed) over the document's own fields."""

    def __init__(self, text: str, task: str) -> None:
        self._task = task
        environment = ImmutableSandboxedEnvironment(
            undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True
        )
        try:
            self._template = environment.from_string(text)
            named = meta.find_undeclared_variables(environment.parse(text))
        except jinja2.TemplateError as error:
            raise ConfigError(
                f"the instructions of task {task!r} are not a valid template: {error}"
            ) from None
        if "text" in named:
            raise ConfigError(
                f"the instructions of task {task!r} name 'text': the document's text is put beside them "
                f"by itself"
            )
        self.fields = tuple(sorted(named - {"id"}))
        self.per_document = bool(named)
        self.plain = "" if self.per_document else self._render_once(task)

    def _render_once(self, task: str) -> str:
        try:
            return self._template.render().strip()
        except Exception as error:  # noqa: BLE001  # as in fill
            raise ConfigError(f"the instructions of task {task!r} fail as a template: {error!r}") from None

    def fill(self, document: Document) -> str:
        """The instructions for one document. Raises DocumentFailed when a field is missing or the template
        fails on it.
        """
        if not self.per_document:
            return self.plain
        values: dict[str, Any] = {
            name: document.fields[name] for name in self.fields if name in document.fields
        }
        try:
            return self._template.render(id=document.id, **values).strip()
        except jinja2.UndefinedError as error:
            message = f"the instructions of task {self._task!r} need a field of the document: {error}"
            raise DocumentFailed("missing_field", message) from None
        except Exception as error:  # noqa: BLE001  # any expression of the template may fail on a value, e.g. a division by zero
            message = f"the instructions of task {self._task!r} failed on this document: {error!r}"
            raise DocumentFailed("template", message) from None


def ask(steps: Sequence[Step]) -> Generator[Sequence[Step], Sequence[Generation], Sequence[Generation]]:
    """Put questions; returns their replies in order, none of which is an error: those end the document
    outside.
    """
    return (yield steps)


def parts_of(setting: Setting, task: Any, text: str, room_tokens: int) -> list[Part]:
    """The parts of a document too long for one prompt. Raises DocumentFailed beyond ``task.max_parts``."""
    part_tokens = min(task.chunk_tokens or room_tokens, room_tokens)
    overlap = min(task.overlap_tokens, part_tokens // 2)
    parts: list[Part] = []
    for part in split(setting.tokenizer, text, part_tokens, overlap):
        parts.append(part)
        if len(parts) > task.max_parts:
            raise DocumentFailed(
                "too_long",
                f"the document of {len(text):,} characters needs more than max_parts = {task.max_parts:,} "
                f"parts of {part_tokens:,} tokens; "
                "raise max_parts, chunk_tokens or context_tokens, or split the document",
            )
    return parts


def ever_smaller(
    setting: Setting,
    document: Document,
    room_tokens: int,
    within: Callable[[int], Work],
    *,
    least_tokens: int,
) -> Work:
    """The work ``within`` prompts that hold at most so many tokens of the document: half as many each time
    the model has no memory left.

    Raises the last DocumentFailed when parts would become shorter than ``least_tokens``.
    """
    limit = room_tokens
    while True:
        try:
            answer = yield from within(limit)
        except DocumentFailed as failure:
            if failure.kind != "out_of_memory":
                raise
            smaller = min(limit, count_tokens(setting.tokenizer, document.text)) // 2
            if smaller < least_tokens:
                raise
            limit = smaller
        else:
            told = f"ran short of memory: read in parts of at most {limit:,} tokens"
            return answer if limit == room_tokens else replace(answer, notes=(*answer.notes, told))


def checked_at_start(work_out: Callable[[], object]) -> None:
    """What would fail every document is told before the night. Raises ConfigError for a DocumentFailed."""
    try:
        work_out()
    except DocumentFailed as failure:
        raise ConfigError(str(failure)) from None


def require_room(task: str, room_tokens: int, least: int) -> None:
    """Refuse instructions that leave no useful room for a document. Raises DocumentFailed."""
    if room_tokens < least:
        raise DocumentFailed(
            "too_long",
            f"the instructions and the answer of task {task!r} leave {room_tokens} tokens of the context "
            f"for a document, at least {least} "
            "are needed; shorten the instructions or max_output_tokens, or raise context_tokens",
        )


_REASONING = "think|thinking|thought|reasoning"
_CLOSED_BLOCK = re.compile(rf"<({_REASONING})>.*?</\1>", re.DOTALL | re.IGNORECASE)
_CLOSING = re.compile(rf"</(?:{_REASONING})>", re.IGNORECASE)
_OPENING = re.compile(rf"<(?:{_REASONING})>", re.IGNORECASE)


def strip_reasoning(text: str) -> str:
    """Text after the model's reasoning blocks: closed ones are removed, and everything before a lone closing
    tag.

    Raises DocumentFailed ``incomplete`` when a block was opened and never closed: there is no answer then.
    """
    text = _CLOSING.split(_CLOSED_BLOCK.sub("", text))[-1]
    if _OPENING.search(text):
        raise DocumentFailed(
            "incomplete",
            "the model's reasoning did not end within max_output_tokens; raise it or switch reasoning off",
        )
    return text.strip()


def definition(task: Any) -> dict[str, Any]:
    """The task's configuration as it enters its identity; the name is the user's own and changes no
    answer.
    """
    return {key: value for key, value in identity_of(task).items() if key != "name"}
