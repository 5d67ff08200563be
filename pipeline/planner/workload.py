"""A night's work as the planner sees it: what sampled documents would ask of the model, and from that what
all of them take.

The sample is scaled by the characters of all documents: seconds are regressed on characters (the regression
estimator; Cochran, Sampling Techniques, 1977, chapter 7), so that only what length does not explain is left
as error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """One request: tokens of its own to read (tree nodes included) behind shared ones, and tokens to write at
    most.

    ``logits``: positions whose predictions are wanted, one and the tree's nodes. ``document_tokens`` of its
    own are a document that other questions may begin with too; ``reads_document``: none of this task's before
    it did.
    """

    own_tokens: int
    shared_tokens: int
    new_tokens: int
    logits: int = 1
    document_tokens: int = 0
    reads_document: bool = True

    @property
    def row_tokens(self) -> int:
        """What its row keeps for itself while it is decoded; nothing where nothing is written."""
        return self.own_tokens + self.new_tokens if self.new_tokens else 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What one document asks in one task. ``tokens`` are the document's own; ``failed``: it would not be
    answered.
    """

    characters: int
    tokens: int
    questions: tuple[Question, ...]
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """A total and one standard error of it."""

    value: float
    error: float

    @property
    def relative_error(self) -> float:
        """The error as a share of the value."""
        return self.error / self.value if self.value else 0.0


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """One task over ``documents`` documents of ``characters`` in all, of which ``sample`` was looked at.

    ``output_tokens`` is what an answer takes on average, where that is known from earlier nights or `bench`;
    else every answer is taken to be as long as it may be.
    """

    name: str
    kind: str
    documents: int
    characters: int
    sample: tuple[Asked, ...]
    output_tokens: float | None = None

    def written_tokens(self, question: Question) -> float:
        """Tokens an answer is expected to take."""
        return (
            question.new_tokens
            if self.output_tokens is None
            else min(question.new_tokens, self.output_tokens)
        )

    def total(self, values: Sequence[float]) -> Estimate:
        """Of all documents, from one value for each document of the sample."""
        return regression_total(
            [(asked.characters, value) for asked, value in zip(self.sample, values, strict=True)],
            self.documents,
            self.characters,
        )

    @property
    def tokens(self) -> Estimate:
        """Tokens of all documents' texts."""
        return self.total([asked.tokens for asked in self.sample])

    @property
    def questions_a_document(self) -> float:
        """Requests a document."""
        return sum(len(asked.questions) for asked in self.sample) / max(1, len(self.sample))


def regression_total(pairs: Sequence[tuple[float, float]], count: int, sum_x: float) -> Estimate:
    """The total of y over ``count`` units whose x sum to ``sum_x``, from sampled (x, y): count (mean y + b
    (mean X - mean x)).

    The error is that of the residuals, with the correction for a finite population. With fewer than three
    pairs, or equal x, the slope is left out.
    """
    n = len(pairs)
    if not n or not count:
        return Estimate(0.0, 0.0)
    mean_x, mean_y = sum(x for x, _ in pairs) / n, sum(y for _, y in pairs) / n
    spread = sum((x - mean_x) ** 2 for x, _ in pairs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread if n >= 3 and spread else 0.0
    value = count * (mean_y + slope * (sum_x / count - mean_x))
    if n >= count:
        return Estimate(max(0.0, value), 0.0)
    used = 2 if slope else 1
    variance = (
        sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in pairs) / (n - used)
        if n > used
        else mean_y**2
    )
    return Estimate(max(0.0, value), count * math.sqrt(variance / n * (1 - n / count)))


def histogram(values: Sequence[int], bars: int = 8) -> list[tuple[int, int, int]]:
    """(from, to, count) by doubling bounds, the first bar holding everything below: lengths spread over
    orders of magnitude.
    """
    if not values:
        return []
    top = max(1, max(values).bit_length())
    first = max(0, top - bars)
    bounds = [0, *(2**power for power in range(first + 1, top + 1))]
    return [
        (low, high, sum(low <= value < high for value in values)) for low, high in itertools.pairwise(bounds)
    ]
