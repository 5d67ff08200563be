"""Which documents of the gold set are shown to the model as examples, in which order, and how much of each.

Chosen for variety inside every label, without any library: the first is the one most like the others of its
label, each next one least like those chosen. The order is shuffled by a seed, since models lean towards the
last examples they have read.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.errors import UsageError

_WORD = re.compile(r"\w+")
_POOL = 200
_LEAST_TOKENS = 16
_CUT_MARK = " …"


@dataclass(frozen=True, slots=True)
class Example:
    """A document shown with its label. ``cut`` says that only the beginning of its text is."""

    id: str
    text: str
    label: str
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Examples:
    """The examples in the order in which they are shown. ``tokens`` counts their texts; ``notes`` say what
    was cut or left out.
    """

    shown: tuple[Example, ...]
    tokens: int
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def ids(self) -> frozenset[str]:
        """Documents that must not be scored against the gold set: the model has read their labels."""
        return frozenset(example.id for example in self.shown)


def choose_examples(
    gold: Sequence[Example],
    labels: Sequence[str],
    per_label: int,
    *,
    budget_tokens: int,
    count_tokens: Callable[[str], int],
    seed: int = 0,
) -> Examples:
    """``per_label`` examples of every label from ``gold``, at most ``budget_tokens`` in all by
    ``count_tokens`` of their texts.

    Too long for the budget: every text is cut to an equal share, at least 16 tokens; where even that is too
    much, fewer examples a label are shown. Deterministic, whatever the order of ``gold``. Raises UsageError
    for a label that is not one of the task's.
    """
    by_label: dict[str, list[Example]] = defaultdict(list)
    for example in sorted(gold, key=lambda found: (found.id, found.text)):
        if example.label not in labels:
            raise UsageError(
                f"example {example.id!r} has the label {example.label!r}, which is not one of the task's "
                f"labels"
            )
        if example.text.strip():
            by_label[example.label].append(example)
    notes = [f"no example of {label!r} in the gold set" for label in labels if not by_label[label]]
    varied = {label: _varied(by_label[label], per_label, seed) for label in labels}
    most = max(map(len, varied.values()), default=0)
    fitting = _affordable(varied, most, budget_tokens)
    if fitting < most:
        notes.append(f"{fitting} instead of {most} examples a label: {budget_tokens:,} tokens hold no more")
    chosen = [example for label in labels for example in varied[label][:fitting]]
    shown = _cut(chosen, budget_tokens, count_tokens)
    if any(example.cut for example in shown):
        notes.append(
            f"{sum(example.cut for example in shown)} of {len(shown)} examples were cut to fit "
            f"{budget_tokens:,} tokens"
        )
    random.Random(seed).shuffle(shown)
    return Examples(tuple(shown), sum(count_tokens(example.text) for example in shown), seed, tuple(notes))


def _varied(pool: Sequence[Example], count: int, seed: int) -> list[Example]:
    """``count`` unlike documents, from a seeded choice of at most 200: medoid first, then farthest first
    (Gonzalez, 1985).
    """
    drawn = list(pool) if len(pool) <= _POOL else random.Random(seed).sample(pool, _POOL)
    words = [frozenset(_WORD.findall(example.text.casefold())) for example in drawn]
    if not drawn:
        return []
    closeness = [sum(_alike(one, other) for other in words) for one in words]
    chosen = [max(range(len(drawn)), key=closeness.__getitem__)]
    nearest = [_alike(one, words[chosen[0]]) for one in words]
    while len(chosen) < min(count, len(drawn)):
        place = min((index for index in range(len(drawn)) if index not in chosen), key=nearest.__getitem__)
        chosen.append(place)
        nearest = [max(before, _alike(one, words[place])) for before, one in zip(nearest, words, strict=True)]
    return [drawn[place] for place in chosen]


def _alike(one: frozenset[str], other: frozenset[str]) -> float:
    """Jaccard similarity of two sets of words."""
    return len(one & other) / len(one | other) if one or other else 1.0


def _affordable(varied: dict[str, list[Example]], most: int, budget_tokens: int) -> int:
    """How many examples a label, at most ``most``, fit when each is cut to the least that says anything."""
    sizes = [len(examples) for examples in varied.values()]
    fitting = (
        count
        for count in range(most, 0, -1)
        if _LEAST_TOKENS * sum(min(count, size) for size in sizes) <= budget_tokens
    )
    return next(fitting, 0)


def _cut(chosen: Sequence[Example], budget_tokens: int, count_tokens: Callable[[str], int]) -> list[Example]:
    """Texts within the budget: short ones whole, the others each cut to the same number of tokens, the
    greatest that fits.
    """
    sizes = [count_tokens(example.text) for example in chosen]
    left, share = budget_tokens, 0
    for place, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - place)
        if size > share:
            break
        left -= size
    return [
        example
        if size <= share
        else Example(example.id, _beginning(example.text, share, count_tokens), example.label, cut=True)
        for example, size in zip(chosen, sizes, strict=True)
    ]


def _beginning(text: str, tokens: int, count_tokens: Callable[[str], int]) -> str:
    """The longest beginning, of whole words where there are any, that has at most ``tokens`` tokens with the
    mark of a cut.
    """
    ends = [match.end() for match in _WORD.finditer(text)]
    if not ends or count_tokens(text[: ends[0]] + _CUT_MARK) > tokens:
        ends = list(range(1, len(text)))
    low, high = 0, len(ends)  # ends[:low] fit
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(text[: ends[middle - 1]] + _CUT_MARK) <= tokens:
            low = middle
        else:
            high = middle - 1
    return text[: ends[low - 1]] + _CUT_MARK if low else ""
