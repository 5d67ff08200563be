"""Segments to token ids: frames around documents, boundaries, and what to do when a document is too long."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pipeline.errors import ConfigError, DocumentFailed
from pipeline.records import EncodedPrompt


class Tokenizer(Protocol):
    """What prompts need of a tokenizer; ``pipeline.engine.model.tokenizer`` has the real one. Token ids are
    plain ints.
    """

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` as data: no special or added control token can come out of it, and none is put
        around it.
        """
        ...

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The same ids, each with its (start, end) in characters of ``text``, non-decreasing."""
        ...

    def encode_template(self, text: str) -> list[int]:
        """Ids of text that came from the chat template itself: its control tokens are parsed, none is
        added.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``, control tokens left out."""
        ...

    def decode_exactly(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` with the control tokens in it, for people who want to see a prompt as the model saw
        it.
        """
        ...

    def render(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str | None:
        """The conversation through the chat template, with the generation marker at its end; None without a
        template.

        Raises ValueError when the template refuses (for example a system role).
        """
        ...

    @property
    def bos_ids(self) -> tuple[int, ...]:
        """The id(s) that the tokenizer itself puts before any text, empty where it puts none."""
        ...

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids that end an answer, most canonical end of turn first."""
        ...


PROMPT_FORMAT = 2
"""Version of how prompts are put together; part of every task's identity."""

_SYSTEM_SLOT = "zqSystemSlotqz"
_USER_SLOT = "zqUserSlot{}qz"
_REPLY_SLOT = "zqReplySlot{}qz"
# A token rarely covers more characters; only how much text is looked at in one go depends on it, never the
# result.
_WINDOW_CHARACTERS_PER_TOKEN = 8
_COUNTED_CHARACTERS = 200_000
_BOUNDARIES = (r"\n\s*\n", r"(?<=[.!?…。！？])[\"'”’)\]]*\s|(?<=[。！？])", r"\n", r"\s")


@dataclass(frozen=True, slots=True)
class Frame:
    """A prompt without its document: token ids ``before`` and ``after`` it, and what had to be done to the
    template (``notes``).
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def around(self, document_ids: Sequence[int], dropped_tokens: int = 0) -> EncodedPrompt:
        """The whole prompt with ``document_ids`` in its place."""
        return EncodedPrompt(
            (*self.before, *document_ids, *self.after), len(self.before), len(document_ids), dropped_tokens
        )

    def room(self, context_tokens: int, new_tokens: int) -> int:
        """Tokens left for a document when ``new_tokens`` are to be generated; may be negative."""
        return context_tokens - len(self.before) - len(self.after) - new_tokens


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a document: characters [start, end) and the token ids of exactly that text."""

    start: int
    end: int
    ids: tuple[int, ...]


class _Template(NamedTuple):
    """The template's own text around what is put into it: ``len(pieces) - 1`` slots, in the order of the
    conversation.

    ``system``: the first slot is the system turn's. ``pieces`` is None where the model has no chat template.
    """

    pieces: tuple[str, ...] | None
    system: bool = False
    notes: tuple[str, ...] = ()


Turn = tuple[str, str]
"""An earlier exchange that the model is shown: what the user gave it to read, and its reply."""


class FrameBuilder:
    """Builds frames for one model: knows its template, its options and the layout.

    The template is rendered once, around a slot; only its own text may produce control tokens.
    ``pinned_date`` (ISO) replaces "now" in templates that print the date, so that tonight's prompts are those
    of last night.
    """

    def __init__(
        self, tokenizer: Tokenizer, layout: str, options: Mapping[str, Any], pinned_date: str
    ) -> None:
        self._tokenizer = tokenizer
        self._document_first = layout == "document_first"
        day = datetime.date.fromisoformat(pinned_date)
        self._options = {"date_string": day.strftime("%d %b %Y"), "strftime_now": day.strftime, **options}
        self._templates: dict[tuple[bool, int], _Template] = {}

    @property
    def document_first(self) -> bool:
        """Whether the document stands before the instructions."""
        return self._document_first

    def build(
        self,
        instructions: str,
        cue: str,
        system: str | None = None,
        *,
        begun: bool = False,
        turns: Sequence[Turn] = (),
    ) -> Frame:
        """Frame of ``instructions`` about a document.

        ``cue`` ("Summary:") ends a prompt where the model has no chat template; with ``begun`` it begins the
        reply in any case. ``turns`` are examples, shown in the prefix as an earlier part of the conversation;
        only where the instructions come first.
        """
        template = self._template(bool(system), len(turns))
        if system and not template.system:
            instructions = f"{system}\n\n{instructions}"
        if template.pieces is None:
            return self._plain(instructions, cue, turns, template.notes)
        encode, encode_template = self._tokenizer.encode, self._tokenizer.encode_template
        said = [text for turn in turns for text in turn]
        if said:
            said[0] = f"{instructions}\n\n{said[0]}"
        contents = [*([system] if system and template.system else []), *said]
        before: list[int] = []
        for piece, content in zip(template.pieces, contents, strict=False):
            before += encode_template(piece) + encode(content)
        before += encode_template(template.pieces[-2])
        ending = encode_template(template.pieces[-1]) + (encode(cue) if begun else [])
        if self._document_first:
            return self._frame(before, encode(f"\n\n{instructions}") + ending, template.notes)
        return self._frame(before if said else before + encode(f"{instructions}\n\n"), ending, template.notes)

    def answer(self, text: str, *, begun: bool = False, ended: bool = True) -> tuple[int, ...]:
        """Ids of ``text`` as a whole answer of the model: its tokens and, with ``ended``, the end of turn.

        ``begun``: it goes on after a cue, see ``build``.
        """
        apart = begun or self._template(False).pieces is None
        return (
            *self._tokenizer.encode(f" {text}" if apart else text),
            *((self._tokenizer.end_ids[0],) if ended else ()),
        )

    def _plain(self, instructions: str, cue: str, turns: Sequence[Turn], notes: tuple[str, ...]) -> Frame:
        """Without a chat template: the same as running text."""
        encode = self._tokenizer.encode
        if self._document_first:
            return self._frame([], encode(f"\n\n{instructions}") + encode(f"\n\n{cue}"), notes)
        shown = "".join(f"{text}\n\n{reply}\n\n" for text, reply in turns)
        return self._frame(encode(f"{instructions}\n\n{shown}"), encode(f"\n\n{cue}"), notes)

    def _frame(self, before: Sequence[int], after: Sequence[int], notes: tuple[str, ...]) -> Frame:
        return Frame(self._with_bos(before), tuple(after), notes)

    def _with_bos(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Exactly one beginning-of-sequence where the tokenizer wants one; templates may or may not have
        written it.
        """
        bos = list(self._tokenizer.bos_ids)
        rest = list(ids)
        while bos and rest[: len(bos)] == bos:
            rest = rest[len(bos) :]
        return (*bos, *rest)

    def _template(self, with_system: bool, turn_count: int = 0) -> _Template:
        key = with_system, turn_count
        if key not in self._templates:
            self._templates[key] = (
                self._with_system(turn_count) if with_system else self._without_system(turn_count)
            )
        return self._templates[key]

    def _without_system(self, turn_count: int) -> _Template:
        slots = _slots(turn_count)
        try:
            rendered = self._tokenizer.render(_conversation(slots), self._options)
        except ValueError as error:
            asked = "earlier turns" if turn_count else "a single user message"
            raise ConfigError(f"the model's chat template refuses {asked}: {error}") from None
        if rendered is None:
            return _Template(None, notes=("no chat template: plain prompt",))
        pieces = _cut_at(rendered, slots)
        if pieces is None:
            found = ", ".join(f"{rendered.count(slot)} times" for slot in slots)
            raise ConfigError(
                f"the model's chat template shows the messages of a conversation {found}; it must show "
                f"each once, in order"
            )
        return _Template(pieces)

    def _with_system(self, turn_count: int) -> _Template:
        slots = [_SYSTEM_SLOT, *_slots(turn_count)]
        try:
            rendered = self._tokenizer.render(
                [{"role": "system", "content": _SYSTEM_SLOT}, *_conversation(slots[1:])], self._options
            )
        except ValueError:  # some templates raise on a system role, others drop it
            rendered = ""
        pieces = _cut_at(rendered or "", slots)
        if pieces is not None:
            return _Template(pieces, system=True)
        plain = self._template(False, turn_count)
        if plain.pieces is None:  # no template at all, which is said already
            return plain
        return plain._replace(
            notes=(*plain.notes, "the template has no system role: folded into the user turn")
        )


def _slots(turn_count: int) -> list[str]:
    """Placeholders for what is said: by the user and the model in turn, last by the user."""
    earlier = [slot.format(number) for number in range(turn_count) for slot in (_USER_SLOT, _REPLY_SLOT)]
    return [*earlier, _USER_SLOT.format(turn_count)]


def _conversation(slots: Sequence[str]) -> list[dict[str, str]]:
    return [
        {"role": "assistant" if place % 2 else "user", "content": slot} for place, slot in enumerate(slots)
    ]


def _cut_at(rendered: str, slots: Sequence[str]) -> tuple[str, ...] | None:
    """The text around the slots, or None unless each of them stands in it once, in order."""
    if any(rendered.count(slot) != 1 for slot in slots):
        return None
    places = [rendered.index(slot) for slot in slots]
    if places != sorted(places):
        return None
    return tuple(re.split("|".join(map(re.escape, slots)), rendered))


def fits(tokenizer: Tokenizer, text: str, room_tokens: int) -> tuple[int, ...] | None:
    """Ids of ``text`` when they are at most ``room_tokens``, else None. Never encodes much more than it
    must.
    """
    if room_tokens <= 0:
        return None
    ids, _, window = _window(tokenizer, text, 0, room_tokens)
    return tuple(ids) if len(ids) <= room_tokens and len(window) == len(text) else None


def count_tokens(tokenizer: Tokenizer, text: str) -> int:
    """Tokens of ``text``, counted a stretch at a time so that memory stays flat; right to a token or two a
    stretch.
    """
    return sum(
        len(tokenizer.encode(text[begin : begin + _COUNTED_CHARACTERS]))
        for begin in range(0, len(text), _COUNTED_CHARACTERS)
    )


def head(tokenizer: Tokenizer, text: str, room_tokens: int) -> Part:
    """The first ``room_tokens`` tokens of ``text``, or all of it."""
    ids, offsets, _ = _window(tokenizer, text, 0, room_tokens)
    end = offsets[room_tokens - 1][1] if len(ids) > room_tokens else len(text)
    return Part(0, end, tuple(ids[:room_tokens]))


def split(tokenizer: Tokenizer, text: str, part_tokens: int, overlap_tokens: int = 0) -> Iterator[Part]:
    """Cut ``text`` into parts of at most ``part_tokens`` tokens, at paragraphs, else sentences, lines,
    spaces.

    The union of the parts' character spans is the whole text. Each part starts ``overlap_tokens`` before the
    last one's end. Lazy, and linear in the length of the text: only the window around the next cut is
    encoded.
    """
    start = reached = 0
    while True:
        part = _part_from(tokenizer, text, start, part_tokens)
        if part.end <= reached < len(text):  # the overlap took all of its room
            part = _part_from(tokenizer, text, reached, part_tokens)
        yield part
        reached = part.end
        if part.end == len(text):
            return
        start = _overlapped(tokenizer, text, part, overlap_tokens)


def _window(
    tokenizer: Tokenizer, text: str, start: int, tokens: int
) -> tuple[list[int], list[tuple[int, int]], str]:
    """Ids, offsets and text of a stretch from ``start`` that has more than ``tokens`` tokens, or reaches the
    end of the text.
    """
    width = tokens * _WINDOW_CHARACTERS_PER_TOKEN
    while True:
        window = text[start : start + width]
        ids, offsets = tokenizer.encode_with_offsets(window)
        if len(ids) > tokens or start + width >= len(text):
            return ids, offsets, window
        width *= 4  # long tokens: runs of spaces, dashes


def _part_from(tokenizer: Tokenizer, text: str, start: int, part_tokens: int) -> Part:
    ids, offsets, window = _window(tokenizer, text, start, part_tokens)
    if len(ids) <= part_tokens:
        return Part(start, len(text), tuple(ids))
    budget = part_tokens
    while True:
        cut = _best_cut(window, max(1, offsets[budget - 1][1]))
        ids = tokenizer.encode(window[:cut])
        if len(ids) <= part_tokens:
            return Part(start, start + cut, tuple(ids))
        if budget == 1:  # one character of many byte tokens
            message = (
                f"parts of {part_tokens} tokens are too small for this text: raise chunk_tokens or "
                f"context_tokens"
            )
            raise DocumentFailed("too_long", message)
        budget = max(1, budget - max(1, len(ids) - part_tokens))


def _best_cut(window: str, limit: int) -> int:
    """The last good place to cut at or before character ``limit``, in the second half of what fits."""
    floor = limit // 2
    for boundary in _BOUNDARIES:
        ends = [match.end() for match in re.finditer(boundary, window[floor:limit]) if match.end() > 0]
        if ends:
            return floor + ends[-1]
    return limit


def _overlapped(tokenizer: Tokenizer, text: str, part: Part, overlap_tokens: int) -> int:
    if overlap_tokens <= 0:
        return part.end
    ids, offsets = tokenizer.encode_with_offsets(text[part.start : part.end])
    back = part.start + offsets[max(0, len(ids) - overlap_tokens)][0]
    space = re.search(r"\s", text[back : part.end])
    start = back + space.end() if space and back + space.end() < part.end else back
    return start if start > part.start else part.end
