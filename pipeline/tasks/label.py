"""``kind: label``: one of the labels, or with ``multi`` any of them, each with a probability from the model's own scores.

The model writes nothing: each label is scored as a whole answer, its tokens and the end of turn, so that a label which is
a prefix of another is told apart and an answer is always one of the labels. Probabilities are the softmax of those
log-probabilities over the labels.

Long documents (``aggregate``): every part is scored; the document's probability of a label is the mean of its parts'
probabilities, weighted by their tokens (a linear opinion pool).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from pipeline.config import LabelTask
from pipeline.errors import ConfigError, DocumentFailed
from pipeline.prompts import Frame, Part, count_tokens, fits, head
from pipeline.records import Answer, Document, Generation, Score, Step, TaskJob
from pipeline.tasks.base import Instructions, Setting, Work, ask, checked_at_start, definition, parts_of, require_room

DEFAULT_INSTRUCTIONS = "Read the text below and decide which category it belongs to."
_CHOICE = "{instructions}\n\nCategories:\n{labels}\n\nAnswer with the name of one category and nothing else."
_YES_NO = "{instructions}\n\nCategory: {labels}\n\nDoes the text belong to this category? Answer yes or no."
_ANSWERS = ("yes", "no")
_LEAST_ROOM = 32


class Label:
    """The task ``label``; see the module. ``shared`` enters the identity: model, numbers, layout."""

    def __init__(self, config: LabelTask, setting: Setting, shared: dict[str, Any]) -> None:
        self._config = config
        self._setting = setting
        self._instructions = Instructions(config.instructions or DEFAULT_INSTRUCTIONS, config.name)
        identity = {
            **shared,
            "task": {**_asked(config), "labels": [[name, config.labels[name]] for name in config.labels]},
            "instructions": config.instructions or DEFAULT_INSTRUCTIONS,
        }
        self.job = TaskJob(config.name, "label", identity, self._instructions.fields)
        self._score = self._continuations()
        self._fixed: dict[str, Frame] = {}
        self.notes = setting.frames.build("", "Category:", config.system).notes
        if not self._instructions.per_document:
            checked_at_start(lambda: self._room(self._frames(self._instructions.plain)))

    def work(self, document: Document) -> Work:
        """Steps ``score/i`` over the parts, or ``score/i/LABEL`` with ``multi``."""
        frames = self._frames(self._instructions.fill(document))
        parts, dropped = self._parts(document, self._room(frames))
        probabilities = yield from self._probabilities(frames, parts)
        return self._answer(probabilities, parts, dropped)

    def _room(self, frames: Mapping[str, Frame]) -> int:
        longest = max(len(answer) for answer in self._score.continuations)
        room = min(frame.room(self._setting.context_tokens, longest) for frame in frames.values())
        require_room(self._config.name, room, _LEAST_ROOM)
        return room

    def _parts(self, document: Document, room: int) -> tuple[list[Part], int]:
        """What of the document is read, in parts, and how many tokens an explicit ``truncate`` leaves out."""
        chunk = self._config.chunk_tokens if self._config.long_documents == "aggregate" else None
        ids = fits(self._setting.tokenizer, document.text, min(room, chunk or room))
        if ids is not None:
            return [Part(0, len(document.text), ids)], 0
        if self._config.long_documents == "aggregate":
            return parts_of(self._setting, self._config, document.text, room), 0
        tokens = count_tokens(self._setting.tokenizer, document.text)
        if self._config.long_documents == "fail":
            raise DocumentFailed(
                "too_long",
                f"the document has {tokens:,} tokens, {room:,} fit; set long_documents to aggregate, or raise context_tokens",
            )
        part = head(self._setting.tokenizer, document.text, room)
        return [part], max(1, tokens - len(part.ids))

    def _probabilities(
        self, frames: Mapping[str, Frame], parts: Sequence[Part]
    ) -> Generator[Sequence[Step], Sequence[Generation], dict[str, float]]:
        """Each label's probability: over all labels, or with ``multi`` that of yes against no."""
        steps = [
            Step(f"score/{index}{name and '/' + name}", frame.around(part.ids), self._score, (part.start, part.end))
            for name, frame in frames.items()
            for index, part in enumerate(parts)
        ]
        replies = iter((yield from ask(steps)))
        weights = [len(part.ids) for part in parts]
        pooled = {name: pool([softmax(next(replies).scores) for _ in parts], weights) for name in frames}
        if self._config.multi:
            return {name: pooled[name][0] for name in self._config.labels}
        return dict(zip(self._config.labels, pooled[""], strict=True))

    def _answer(self, probabilities: dict[str, float], parts: Sequence[Part], dropped: int) -> Answer:
        threshold = self._config.abstain_below
        value: str | list[str] | None
        if self._config.multi:
            value = [name for name, probability in probabilities.items() if probability >= 0.5]
            certainty = min(max(probability, 1 - probability) for probability in probabilities.values())
        else:
            value = max(probabilities, key=lambda name: probabilities[name])
            certainty = probabilities[value]
        abstained = threshold is not None and certainty < threshold
        return Answer(
            value=None if abstained else value,
            finish_reason="abstained" if abstained else "stop",
            probabilities=probabilities,
            scores={name: math.log(max(probability, 1e-300)) for name, probability in probabilities.items()},
            tokens_in=sum(len(part.ids) for part in parts),
            tokens_dropped=dropped,
            parts=len(parts),
        )

    def _frames(self, instructions: str) -> Mapping[str, Frame]:
        """One frame, called "", for a choice among all labels; with ``multi`` one a label."""
        if self._instructions.per_document or not self._fixed:
            frames = self._build(instructions)
            if self._instructions.per_document:
                return frames
            self._fixed = frames
        return self._fixed

    def _build(self, instructions: str) -> dict[str, Frame]:
        described = {name: f"{name}: {about}" if about else name for name, about in self._config.labels.items()}
        if self._config.multi:
            return {name: self._frame(_YES_NO, instructions, text) for name, text in described.items()}
        return {"": self._frame(_CHOICE, instructions, "\n".join(f"- {text}" for text in described.values()))}

    def _frame(self, pattern: str, instructions: str, labels: str) -> Frame:
        text = pattern.format(instructions=instructions, labels=labels)
        return self._setting.frames.build(text, "Category:", self._config.system)

    def _continuations(self) -> Score:
        names = _ANSWERS if self._config.multi else tuple(self._config.labels)
        sequences = tuple(self._setting.frames.answer(name) for name in names)
        for index, sequence in enumerate(sequences):
            if sequence in sequences[:index]:
                first = names[sequences.index(sequence)]
                raise ConfigError(f"task {self._config.name!r}: labels {first!r} and {names[index]!r} are the same tokens; rename one")
        return Score(sequences, _tolerance(self._config))


def _tolerance(config: LabelTask) -> float:
    """Calibration needs the score of every label."""
    return 0.0 if config.calibration != "none" else config.score_tolerance


def _asked(config: LabelTask) -> dict[str, Any]:
    """The part of the definition that what the model is asked depends on; how its scores are seen afterwards is no part of it."""
    seen = {"calibration", "expected_shares"}
    kept = {key: value for key, value in definition(config).items() if key not in seen}
    return {**kept, "score_tolerance": _tolerance(config)}


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities of natural-log scores, normalized over them."""
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]


def pool(rows: Sequence[Sequence[float]], weights: Sequence[int]) -> list[float]:
    """Mean of the rows of probabilities, weighted (linear opinion pool); every weight counts at least one."""
    sizes = [max(1, weight) for weight in weights]
    total = sum(sizes)
    return [sum(size * row[column] for size, row in zip(sizes, rows, strict=True)) / total for column in range(len(rows[0]))]
