"""Segments to token ids: frames around documents, boundaries, and what to do when a document is too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """What prompts need of a tokenizer; ``pipeline.engine.tokenizer`` has the real one. Token ids are plain ints."""

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` as data: no special or added control token can come out of it, and none is put around it."""
        ...

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The same ids, each with its (start, end) in characters of ``text``, non-decreasing."""
        ...

    def encode_template(self, text: str) -> list[int]:
        """Ids of text that came from the chat template itself: its control tokens are parsed, none is added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``, control tokens left out."""
        ...

    def render(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str | None:
        """The conversation through the chat template, with the generation marker at its end; None without a template.

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
