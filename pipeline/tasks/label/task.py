"""``kind: label``: one of the labels, or with ``multi`` any of them, each with a probability from the model's
own scores.

The model writes nothing: its reply is begun for it (``cue``), and each label is scored as what comes next, so
that an answer is always one of the labels. A label whose tokens begin another's is scored with the end of
turn, which tells it apart; the others are not: small models are poor at knowing when to stop, and the share
of it in the scores hides which label they mean. Probabilities are the softmax of those log-probabilities over
the labels.

Beside the scores, the model's state at the end of the prompt is kept (``features``): what a calibration by
gold labels is fitted with.

Long documents (``aggregate``): every part is scored; the document's probability of a label is the mean of its
parts' probabilities, weighted by their tokens (a linear opinion pool).

Examples are earlier turns of the conversation, in the prefix that all documents share, and so are read once.
What of them the model reads is in the job's identity (``examples``: id, label, digest of the text); a
document that was shown must not be scored against the gold set, see ``example_ids``.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, DocumentFailed
from pipeline.prompts import Frame, Part, count_tokens, fits, head
from pipeline.quality.examples import Example
from pipeline.records import Answer, Document, Generation, Score, Step, TaskJob
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
)
from pipeline.tasks.label import few_shot
from pipeline.tasks.label.section import LabelTask

DEFAULT_INSTRUCTIONS = "Read the text below and decide which category it belongs to."
_CHOICE = "{instructions}\n\nCategories:\n{labels}"
_YES_NO = "{instructions}\n\nCategory: {labels}\n\nDoes the text belong to this category? Answer yes or no."
_ANSWERS = ("yes", "no")
_CUE = "The category that fits this text best is"
_YES_NO_CUE = "Answer:"
_LEAST_ROOM = 32


class Label:
    """The task ``label``; see the module. ``shared`` enters the identity: model, numbers, layout.

    ``example_ids`` are the documents that the model is shown with their labels, among those that ``examples``
    offers.
    """

    def __init__(
        self, config: LabelTask, setting: Setting, shared: dict[str, Any], examples: Sequence[Example] = ()
    ) -> None:
        self._config = config
        self._setting = setting
        self._names = config.read_names
        self._cue = config.cue or (_YES_NO_CUE if config.multi else _CUE)
        self._examples = few_shot.choose(config, examples, setting.tokenizer)
        self.example_ids = self._examples.ids if self._examples else frozenset()
        self._instructions = Instructions(config.instructions or DEFAULT_INSTRUCTIONS, config.name)
        self.job = TaskJob(config.name, "label", self._identity(shared), self._instructions.fields)
        self._score = self._continuations()
        self._fixed: dict[str, Frame] = {}
        self.notes = (*setting.frames.build("", self._cue, config.system).notes, *self._example_notes())
        if not self._instructions.per_document:
            checked_at_start(lambda: self._room(self._frames(self._instructions.plain)))

    def work(self, document: Document) -> Work:
        """Steps ``score/i`` over the parts, or ``score/i/LABEL`` with ``multi``."""
        frames = self._frames(self._instructions.fill(document))
        room = self._room(frames)
        within = partial(self._within, document, frames)
        if self._config.long_documents == "aggregate":
            return (yield from ever_smaller(self._setting, document, room, within, least_tokens=_LEAST_ROOM))
        return (yield from within(room))

    def _within(self, document: Document, frames: Mapping[str, Frame], room: int) -> Work:
        """In prompts that hold at most ``room`` tokens of the document."""
        parts, dropped = self._parts(document, room)
        probabilities, features = yield from self._probabilities(frames, parts)
        return replace(self._answer(probabilities, parts, dropped), features=features)

    def _identity(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        defined = {
            key: value
            for key, value in _asked(self._config).items()
            if key not in few_shot.IDENTITY_LEAVES_OUT
        }
        return {
            **shared,
            "task": {**defined, "labels": [[name, about] for name, about in self._config.labels.items()]},
            "instructions": self._config.instructions or DEFAULT_INSTRUCTIONS,
            **({"examples": few_shot.identity(self._examples.shown)} if self._examples else {}),
        }

    def _example_notes(self) -> tuple[str, ...]:
        """What people are told about the examples. Raises ConfigError where they would not stand before the
        document.
        """
        if self._examples is None:
            return ()
        if self._setting.frames.document_first:
            raise ConfigError(
                f"task {self._config.name!r} has examples, which stand before the document: set layout: "
                f"instructions_first"
            )
        count = f"{len(self._examples.shown)} examples of {self._examples.tokens:,} tokens are shown"
        notes = [count, *self._examples.notes]
        if self._instructions.per_document:
            notes.append(
                "the instructions differ from document to document, so the examples are read again for each"
            )
        return tuple(f"task {self._config.name!r}: {note}" for note in notes)

    def _room(self, frames: Mapping[str, Frame]) -> int:
        longest = max(len(answer) for answer in self._score.continuations)
        room = min(frame.room(self._setting.context_tokens, longest) for frame in frames.values())
        if self._examples is not None and room < _LEAST_ROOM <= room + self._examples.tokens:
            raise DocumentFailed(
                "too_long",
                f"the {len(self._examples.shown)} examples of task {self._config.name!r}, "
                f"{self._examples.tokens:,} tokens, leave {room} "
                f"of the context's {self._setting.context_tokens:,} for a document, at least "
                f"{_LEAST_ROOM} needed; lower examples_tokens",
            )
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
                f"the document has {tokens:,} tokens, {room:,} fit; set long_documents to aggregate, or "
                f"raise context_tokens",
            )
        part = head(self._setting.tokenizer, document.text, room)
        return [part], max(1, tokens - len(part.ids))

    def _probabilities(
        self, frames: Mapping[str, Frame], parts: Sequence[Part]
    ) -> Generator[Sequence[Step], Sequence[Generation], tuple[dict[str, float], bytes]]:
        """Each label's probability: over all labels, or with ``multi`` that of yes against no; and the
        document's features.
        """
        steps = [
            Step(
                f"score/{index}{name and '/' + name}",
                frame.around(part.ids),
                self._score,
                (part.start, part.end),
            )
            for name, frame in frames.items()
            for index, part in enumerate(parts)
        ]
        found = yield from ask(steps)
        replies = iter(found)
        weights = [len(part.ids) for part in parts]
        pooled = {name: pool([softmax(next(replies).scores) for _ in parts], weights) for name in frames}
        if self._config.multi:
            return {name: pooled[name][0] for name in self._config.labels}, b""
        return dict(zip(self._config.labels, pooled[""], strict=True)), pool_features(
            [reply.features for reply in found], weights
        )

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
        described = {
            name: f"{self._names[name]}: {about}" if about else self._names[name]
            for name, about in self._config.labels.items()
        }
        if self._config.multi:
            return {name: self._frame(_YES_NO, instructions, text) for name, text in described.items()}
        return {"": self._frame(_CHOICE, instructions, "\n".join(f"- {text}" for text in described.values()))}

    def _frame(self, pattern: str, instructions: str, labels: str) -> Frame:
        text = pattern.format(instructions=instructions, labels=labels)
        if not (self._setting.frames.document_first or self._examples):
            text += "\n\nText:"
        turns = (
            few_shot.turns(self._examples.shown, self._names, self._cue) if self._examples is not None else ()
        )
        return self._setting.frames.build(text, self._cue, self._config.system, begun=True, turns=turns)

    def _continuations(self) -> Score:
        names = _ANSWERS if self._config.multi else tuple(self._config.labels)
        read = [name if self._config.multi else self._names[name] for name in names]
        plain = [self._setting.frames.answer(name, begun=True, ended=False) for name in read]
        begins = [
            any(mine == other[: len(mine)] for place, other in enumerate(plain) if place != index)
            for index, mine in enumerate(plain)
        ]
        sequences = tuple(
            self._setting.frames.answer(name, begun=True, ended=ended)
            for name, ended in zip(read, begins, strict=True)
        )
        for index, sequence in enumerate(sequences):
            if sequence in sequences[:index]:
                first = names[sequences.index(sequence)]
                raise ConfigError(
                    f"task {self._config.name!r}: labels {first!r} and {names[index]!r} are the same "
                    f"tokens; rename one"
                )
        keeps = not self._config.multi and self._config.calibration != "none"
        return Score(sequences, _tolerance(self._config), features=keeps)


def _tolerance(config: LabelTask) -> float:
    """Calibration needs the score of every label."""
    return 0.0 if config.calibration != "none" else config.score_tolerance


def _asked(config: LabelTask) -> dict[str, Any]:
    """The part of the definition that what the model is asked depends on; how its scores are seen afterwards
    is no part of it.
    """
    seen = {"calibration", "expected_shares", "abstain_below", "target_accuracy"}
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
    return [
        sum(size * row[column] for size, row in zip(sizes, rows, strict=True)) / total
        for column in range(len(rows[0]))
    ]


def pool_features(parts: Sequence[bytes], weights: Sequence[int]) -> bytes:
    """Mean of the parts' features (little-endian float16), weighted as in ``pool``; empty when a part has
    none.
    """
    if len(parts) == 1 or not all(parts):
        return parts[0] if all(parts) else b""
    rows = np.array([np.frombuffer(part, dtype="<f2") for part in parts], dtype=np.float64)
    mean: bytes = (
        np.average(rows, axis=0, weights=[max(1, weight) for weight in weights]).astype("<f2").tobytes()
    )
    return mean
