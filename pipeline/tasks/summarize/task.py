"""``kind: summarize``: one summary a document, however long it is.

A document that fits is asked about once. A longer one is cut into parts: ``map_reduce`` summarizes every
part, then the summaries, in several levels where one prompt cannot hold them; ``refine`` carries one summary
through the parts.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

from pipeline.errors import DocumentFailed
from pipeline.prompts import Frame, count_tokens, fits, head
from pipeline.records import Answer, Document, EncodedPrompt, Generation, Step, TaskJob
from pipeline.tasks.base import (
    Instructions,
    Setting,
    Work,
    ask,
    checked_at_start,
    definition,
    ever_smaller,
    parts_of,
    require_room,
    strip_reasoning,
)
from pipeline.tasks.summarize.section import SummarizeTask

DEFAULT_INSTRUCTIONS = (
    "Summarize the following text in two or three sentences. Keep the names, numbers "
    "and conclusions that matter."
)
_PART = "The text below is one part of a longer document.\n{instructions}"
_REDUCE = (
    "Below are summaries of consecutive parts of one document, in order. Combine them into a single "
    "summary of the whole document.\n"
    "{instructions}"
)
_REFINE = (
    "This is a summary of the document so far:\n{summary}\n\n"
    "The text below is its next part. Rewrite the summary so that it covers both.\n{instructions}"
)
_LEAST_ROOM = 64


class Summarize:
    """The task ``summarize``; see the module. ``shared`` enters the identity: model, numbers, layout."""

    def __init__(self, config: SummarizeTask, setting: Setting, shared: dict[str, Any]) -> None:
        self._config = config
        self._setting = setting
        self._instructions = Instructions(config.instructions or DEFAULT_INSTRUCTIONS, config.name)
        identity = {
            **shared,
            "task": definition(config),
            "instructions": config.instructions or DEFAULT_INSTRUCTIONS,
        }
        self.job = TaskJob(config.name, "summarize", identity, self._instructions.fields)
        self._frames: dict[str, Frame] = {}
        self.notes = self._build("{instructions}", "").notes
        if not self._instructions.per_document:
            patterns = (
                ("{instructions}", _PART, _REDUCE)
                if config.long_documents == "map_reduce"
                else ("{instructions}",)
            )
            for pattern in patterns:
                checked_at_start(
                    partial(
                        self._room, self._build(pattern, self._instructions.plain), config.max_output_tokens
                    )
                )

    def work(self, document: Document) -> Work:
        """Steps ``whole``; or ``map/i`` and ``reduce/level/i``; or ``refine/i``."""
        instructions = self._instructions.fill(document)
        frame = self._frame("{instructions}", instructions)
        room = self._room(frame, self._config.max_output_tokens)
        ids = fits(self._setting.tokenizer, document.text, room)
        if self._config.long_documents in ("map_reduce", "refine"):
            within = partial(self._within, document, instructions, ids)
            return (yield from ever_smaller(self._setting, document, room, within, least_tokens=_LEAST_ROOM))
        if ids is not None:
            return (yield from self._whole(document, frame, ids))
        return (yield from self._cut(document, frame, room))

    def _within(self, document: Document, instructions: str, ids: Sequence[int] | None, room: int) -> Work:
        """In one prompt where it holds the document's ``ids``, else in parts of at most ``room`` tokens."""
        if ids is not None and len(ids) <= min(room, self._config.chunk_tokens or room):
            return (yield from self._whole(document, self._frame("{instructions}", instructions), ids))
        if self._config.long_documents == "map_reduce":
            return (yield from self._map_reduce(document, instructions, room))
        return (yield from self._refine(document, instructions, room))

    def _whole(self, document: Document, frame: Frame, ids: Sequence[int]) -> Work:
        reply = yield from self._ask_one(document, "whole", frame.around(ids), (0, len(document.text)))
        return self._answer(reply, len(ids))

    def _cut(self, document: Document, frame: Frame, room: int) -> Work:
        """``fail`` and ``truncate``: what is lost is counted, or the document fails."""
        tokens = count_tokens(self._setting.tokenizer, document.text)
        if self._config.long_documents == "fail":
            raise DocumentFailed(
                "too_long",
                f"the document has {tokens:,} tokens, {room:,} fit; set long_documents to map_reduce, or "
                f"raise context_tokens",
            )
        part = head(self._setting.tokenizer, document.text, room)
        dropped = max(1, tokens - len(part.ids))
        reply = yield from self._ask_one(
            document, "truncated", frame.around(part.ids, dropped), (0, part.end)
        )
        return self._answer(reply, len(part.ids), dropped=dropped)

    def _map_reduce(self, document: Document, instructions: str, room: int) -> Work:
        frame = self._frame(_PART, instructions)
        reduce_frame = self._frame(_REDUCE, instructions)
        reduce_room = min(room, self._room(reduce_frame, self._config.max_output_tokens))
        # At least three summaries fit in one reduce prompt, so every level is shorter than the last and the
        # reduction ends.
        new_tokens = min(self._config.max_output_tokens, reduce_room // 3 - 8)
        parts = parts_of(self._setting, self._config, document.text, min(room, self._room(frame, new_tokens)))
        replies = yield from ask(
            [
                Step(
                    f"map/{index}",
                    frame.around(part.ids),
                    self._setting.decode(document, f"map/{index}", new_tokens),
                    (part.start, part.end),
                )
                for index, part in enumerate(parts)
            ]
        )
        summaries = self._texts(replies)
        level = 0
        while True:
            groups = self._groups(summaries, reduce_room)
            last = len(groups) == 1
            limit = self._config.max_output_tokens if last else new_tokens
            steps = [
                Step(
                    f"reduce/{level}/{index}",
                    reduce_frame.around(ids),
                    self._setting.decode(document, f"reduce/{level}/{index}", limit),
                )
                for index, ids in enumerate(groups)
            ]
            replies = yield from ask(steps)
            if last:
                return self._answer(replies[0], sum(len(part.ids) for part in parts), parts=len(parts))
            summaries, level = self._texts(replies), level + 1

    def _groups(self, summaries: Sequence[str], room: int) -> list[list[int]]:
        """Token ids of consecutive summaries joined, each group within ``room`` and, but for the last, of at
        least two.
        """
        encode = self._setting.tokenizer.encode
        groups: list[list[int]] = [[]]
        for number, summary in enumerate(summaries, 1):
            ids = encode(f"{number}. {summary}\n")[: room // 3]
            if len(groups[-1]) + len(ids) > room:
                groups.append([])
            groups[-1] += ids
        return groups

    def _refine(self, document: Document, instructions: str, room: int) -> Work:
        first = self._frame("{instructions}", instructions)
        frame_tokens = len(self._setting.tokenizer.encode(_REFINE)) + self._config.max_output_tokens + 16
        room = min(room, self._room(first, self._config.max_output_tokens + frame_tokens))
        parts = parts_of(self._setting, self._config, document.text, room)
        summary, reply = "", None
        for index, part in enumerate(parts):
            frame = first if index == 0 else self._build(_REFINE, instructions, summary)
            reply = yield from self._ask_one(
                document, f"refine/{index}", frame.around(part.ids), (part.start, part.end)
            )
            summary = self._texts([reply])[0]
        assert reply is not None  # a document too long for one prompt has parts
        return self._answer(reply, sum(len(part.ids) for part in parts), parts=len(parts))

    def _ask_one(
        self, document: Document, name: str, prompt: EncodedPrompt, span: tuple[int, int] | None
    ) -> Generator[Sequence[Step], Sequence[Generation], Generation]:
        step = Step(name, prompt, self._setting.decode(document, name, self._config.max_output_tokens), span)
        return (yield from ask([step]))[0]

    def _texts(self, replies: Sequence[Generation]) -> list[str]:
        """Summaries of parts, the empty ones left out. Raises DocumentFailed when nothing is left."""
        texts = [strip_reasoning(self._setting.tokenizer.decode(reply.token_ids)) for reply in replies]
        kept = [text for text in texts if text]
        if not kept:
            raise DocumentFailed("empty_answer", "the model wrote nothing for any part of the document")
        return kept

    def _answer(self, reply: Generation, tokens_in: int, parts: int = 1, dropped: int = 0) -> Answer:
        raw = self._setting.tokenizer.decode(reply.token_ids)
        text = strip_reasoning(raw)
        if not text:
            raise DocumentFailed("empty_answer", "the model ended its answer without writing anything")
        return Answer(
            value=text,
            finish_reason=reply.finish_reason,
            raw=raw if raw.strip() != text else None,
            tokens_in=tokens_in,
            tokens_out=len(reply.token_ids),
            tokens_dropped=dropped,
            parts=parts,
        )

    def _frame(self, pattern: str, instructions: str) -> Frame:
        """Frames that do not depend on the document are built once."""
        if self._instructions.per_document:
            return self._build(pattern, instructions)
        if pattern not in self._frames:
            self._frames[pattern] = self._build(pattern, instructions)
        return self._frames[pattern]

    def _build(self, pattern: str, instructions: str, summary: str = "") -> Frame:
        text = pattern.format(instructions=instructions, summary=summary)
        return self._setting.frames.build(text, "Summary:", self._config.system)

    def _room(self, frame: Frame, new_tokens: int) -> int:
        room = frame.room(self._setting.context_tokens, new_tokens)
        require_room(self._config.name, room, _LEAST_ROOM)
        return room
