"""The model's tokenizer and chat template, as ``pipeline.prompts`` wants them: text is data, only the
template speaks in control tokens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

from pipeline.config import ModelConfig
from pipeline.engine.model.data_tokenizer import (
    continuing_copy,
    control_tokens,
    data_copy,
    described,
    has_prefix,
)
from pipeline.engine.model.library_logging import quiet_libraries
from pipeline.engine.model.location import Location, locate
from pipeline.errors import ConfigError

_SURROGATE = re.compile("[\ud800-\udfff]")
_ANSWER_SLOT = "zqAnswerSlotqz"
# Marks of reasoning stay in decoded text even where a model calls them special: the tasks take the reasoning
# out by them.
_REASONING_MARK = re.compile(r"[<\[]/?(?:think|thinking|thought|reasoning)[>\]]", re.IGNORECASE)
_DATE_FORMAT = re.compile(r"""(["'])([^"'\n]*%[^"'\n]*)\1""")
# The line break after a block is dropped, so that the template still begins at the start of a line.
_DATE_MACRO = (
    "{% macro strftime_now(format) -%}{{ pinned_dates[format] if format in pinned_dates else "
    "raise_exception('the date format ' ~ format ~ ' is not spelled out in the template') }}{%- endmacro %}\n"
)


def load_tokenizer(config: ModelConfig, location: Location | None = None) -> ChatTokenizer:
    """The tokenizer of ``config.id``; no weights are touched. Raises ConfigError."""
    from transformers import AutoTokenizer

    quiet_libraries()
    # texts are encoded one by one; threads would only warn after a fork
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    place = location or locate(config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place.folder, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the tokenizer of {config.id} cannot be loaded: {' '.join(str(error).split())}"
        ) from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ConfigError(
            f"the tokenizer of {config.id} has no tokenizer.json form ({type(tokenizer).__name__}), which "
            f"this program needs"
        )
    if not tokenizer.backend_tokenizer.encode(
        "Any words.", add_special_tokens=False
    ).ids:  # what the library makes of no files at all
        raise ConfigError(
            f"the tokenizer of {config.id} makes no tokens of any words; tokenizer.json, or the files it "
            f"is made of, are missing"
        )
    return ChatTokenizer(tokenizer, _configured_end_ids(place))


class ChatTokenizer:
    """Implements ``pipeline.prompts.Tokenizer`` over a transformers tokenizer. For one thread at a time.

    ``control_ids`` are the ids that never come out of ``encode``; ``further_end_ids`` end an answer beside
    the tokenizer's own.
    """

    def __init__(self, tokenizer: Any, further_end_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._original = tokenizer.backend_tokenizer
        self._original.no_truncation()
        self._original.no_padding()
        self._further_end_ids = tuple(further_end_ids)
        self._control = control_tokens(self._original)
        self._control_start = re.compile(
            "|".join(map(re.escape, sorted(self._control.values(), key=len, reverse=True))) or r"(?!)"
        )
        self._unseen = frozenset(
            number
            for number, token in self._original.get_added_tokens_decoder().items()
            if token.special and not _REASONING_MARK.fullmatch(token.content)
        )
        self.control_ids = frozenset(self._control)

    @cached_property
    def _copies(self) -> tuple[Any, Any, dict[int, int]]:
        """(for text that is data, for text in the middle of a prompt, ids of the first that differ): made
        when text is first seen.
        """
        plain = described(self._original)
        data, renumbered = data_copy(self._original, plain, self._control)
        return data, continuing_copy(plain) if has_prefix(plain) else self._original, renumbered

    @property
    def _data(self) -> Any:
        return self._copies[0]

    @property
    def _continuing(self) -> Any:
        return self._copies[1]

    @property
    def _renumbered(self) -> dict[int, int]:
        return self._copies[2]

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` as data. Only the model's token for unknown characters, where it has one, is a
        control token that may occur.
        """
        ids: list[int] = self._data.encode(_encodable(text), add_special_tokens=False).ids
        return [self._renumbered.get(number, number) for number in ids] if self._renumbered else ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The same ids with their places in ``text``; starts and ends never go back, also where a normalizer
        reorders.
        """
        encoded = self._data.encode(_encodable(text), add_special_tokens=False)
        ids = [self._renumbered.get(number, number) for number in encoded.ids]
        starts = accumulate((start for start, _ in encoded.offsets), max)
        ends = accumulate((end for _, end in encoded.offsets), max)
        return ids, list(zip(starts, ends, strict=True))

    def encode_template(self, text: str) -> list[int]:
        """Ids of a template's own text. A start that is no control token continues what stands before it."""
        starts_anew = self._control_start.match(text) is not None
        backend = self._original if starts_anew else self._continuing
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens; other added tokens (``<think>``) are shown, so that
        reasoning can be told from answer.
        """
        text: str = self._continuing.decode(
            [number for number in ids if number not in self._unseen], skip_special_tokens=False
        )
        return text

    def decode_exactly(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` with all control tokens in it."""
        text: str = self._continuing.decode(list(ids), skip_special_tokens=False)
        return text

    def render(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str | None:
        """The conversation as text, ready to be answered; None without a template. Raises ValueError when the
        template refuses.
        """
        return self._render(messages, options, add_generation_prompt=True)

    @cached_property
    def bos_ids(self) -> tuple[int, ...]:
        """What the tokenizer puts before a text, found by comparing with and without."""
        full = list(self._tokenizer("a").input_ids)
        bare = self._original.encode("a", add_special_tokens=False).ids
        starts = [start for start in range(len(full)) if full[start : start + len(bare)] == bare]
        return tuple(full[: starts[0]]) if starts else ()

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """End of turn by the template, then the tokenizer's end of sequence, then those of the model's
        settings. Raises ConfigError.
        """
        own = [] if self._tokenizer.eos_token_id is None else [int(self._tokenizer.eos_token_id)]
        ids = tuple(dict.fromkeys((*self._end_of_turn(), *own, *self._further_end_ids)))
        if not ids:
            raise ConfigError(
                "neither tokenizer nor generation settings nor chat template of this model say how an "
                "answer ends"
            )
        return ids

    @property
    def pad_id(self) -> int:
        """The id for padding: the tokenizer's own, else an end token. Padding is masked, so it changes
        nothing.
        """
        pad = self._tokenizer.pad_token_id
        return int(pad) if pad is not None else self.end_ids[0]

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones counted."""
        return len(self._tokenizer)

    @property
    def has_template(self) -> bool:
        """Whether the model comes with a chat template."""
        return bool(self._tokenizer.chat_template)

    def _render(
        self,
        messages: Sequence[Mapping[str, str]],
        options: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> str | None:
        if not self.has_template:
            return None
        conversation = [dict(message) for message in messages]
        try:
            template, plain = _with_pinned_dates(self._tokenizer.get_chat_template(), options)
            text: str = self._tokenizer.apply_chat_template(
                conversation,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **plain,
            )
        except Exception as error:  # a template is a program of the model's maker and raises what it likes
            raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error
        return text

    def _end_of_turn(self) -> list[int]:
        """The control token that the template puts right after an assistant's message, if it does."""
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _ANSWER_SLOT}]
        try:
            text = self._render(turns, {}, add_generation_prompt=False) or ""
        except ValueError:
            return []
        after = text.rpartition(_ANSWER_SLOT)[2].lstrip() if _ANSWER_SLOT in text else ""
        found = self._control_start.match(after)
        return [int(self._original.token_to_id(found[0]))] if found else []


def _with_pinned_dates(template: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The template with ``strftime_now`` of ``options`` in place of the clock's, and the options that are
    plain data.

    transformers lets a template see data only, no functions, so the dates are made beforehand, for each
    format that the template spells out, and looked up by a macro of that name.
    """
    plain = {name: value for name, value in options.items() if not callable(value)}
    pinned = options.get("strftime_now")
    if not callable(pinned) or "strftime_now" not in template:
        return template, plain
    formats = {found[1] for found in _DATE_FORMAT.findall(template)}
    return _DATE_MACRO + template, {**plain, "pinned_dates": {form: pinned(form) for form in formats}}


def _encodable(text: str) -> str:
    """``text`` with lone surrogates, which no tokenizer takes, read as U+FFFD: as many characters as
    before.
    """
    return _SURROGATE.sub("\ufffd", text)


def _configured_end_ids(location: Location) -> list[int]:
    """End tokens of the generation settings and, for models without them, of the configuration."""
    found = location.json("generation_config.json").get(
        "eos_token_id", location.json("config.json").get("eos_token_id")
    )
    return [number for number in (found if isinstance(found, list) else [found]) if isinstance(number, int)]
