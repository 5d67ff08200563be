"""How good summaries are: ROUGE against a reference, and what can be told without one: length, copied share,
coverage.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.quality.scores import extra

_WORD = re.compile(r"\w+")
_PARTS = 10
_LONG_WORD = 4


@dataclass(frozen=True, slots=True)
class SummaryQuality:
    """One summary. ROUGE values are F1 in [0, 1], None without a reference (Lin, "ROUGE", 2004; the
    ``rouge-score`` package).

    ``copied`` is the share of the summary's words that lie in stretches of at least two words copied from the
    document, and ``density`` the mean length of the stretch that a word lies in, in words; both over the
    greedy fragments of Grusky, Naaman and Artzi, "Newsroom" (NAACL 2018). ``coverage`` is the share of ten
    equal parts of the document with whose longer words the summary agrees.
    """

    words: int
    copied: float
    density: float
    coverage: float
    rouge1: float | None = None
    rouge2: float | None = None
    rouge_l: float | None = None


def measure(summary: str, document: str, reference: str | None = None) -> SummaryQuality:
    """Measure one summary. Raises UsageError when a reference is given and ``rouge-score`` is not
    installed.
    """
    written, read = _words(summary), _words(document)
    stretches = fragments(written, read)
    scores = rouge(summary, reference) if reference is not None else {}
    return SummaryQuality(
        words=len(written),
        copied=sum(length for length in stretches if length > 1) / max(1, len(written)),
        density=sum(length**2 for length in stretches) / max(1, len(written)),
        coverage=covered(written, read),
        rouge1=scores.get("rouge1"),
        rouge2=scores.get("rouge2"),
        rouge_l=scores.get("rougeLsum"),
    )


def rouge(summary: str, reference: str) -> Mapping[str, float]:
    """F1 of ``rouge1``, ``rouge2`` and ``rougeLsum`` (per line) with Porter stemming.

    The package's own tokenizer knows Latin letters and digits only: texts in other scripts are split into
    words here, unstemmed.
    """
    scorer = _scorer(summary.isascii() and reference.isascii())
    return {name: float(score.fmeasure) for name, score in scorer.score(reference, summary).items()}


def fragments(summary: list[str], document: list[str]) -> list[int]:
    """Lengths of the stretches of ``summary`` copied from ``document``: at each word the longest one, taken
    greedily.
    """
    places: dict[str, list[int]] = {}
    for place, word in enumerate(document):
        places.setdefault(word, []).append(place)
    lengths: list[int] = []
    at = 0
    while at < len(summary):
        longest = max(
            (_common(summary, at, document, place) for place in places.get(summary[at], ())), default=0
        )
        if longest:
            lengths.append(longest)
        at += max(1, longest)
    return lengths


def covered(summary: list[str], document: list[str]) -> float:
    """Of ten equal parts of the document (fewer when it has fewer words), the share that has a longer word of
    the summary's which is in no other part, or else is in this part most often.
    """
    parts = [part for part in _slices(document) if part]
    if not parts:
        return 0.0
    reached: set[int] = set()
    for word in {word for word in summary if len(word) >= _LONG_WORD}:
        counts = [part.count(word) for part in parts]
        if any(counts):
            reached.add(counts.index(max(counts)))
    return len(reached) / len(parts)


def _slices(words: list[str]) -> Iterable[list[str]]:
    edges = [len(words) * number // _PARTS for number in range(_PARTS + 1)]
    return (words[start:end] for start, end in itertools.pairwise(edges))


def _common(summary: list[str], at: int, document: list[str], place: int) -> int:
    length = 0
    while (
        at + length < len(summary)
        and place + length < len(document)
        and summary[at + length] == document[place + length]
    ):
        length += 1
    return length


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


class _AnyScript:
    """A tokenizer for ``rouge-score`` that keeps words of every script."""

    def tokenize(self, text: str) -> list[str]:
        """Case-folded words."""
        return _words(text)


@functools.cache
def _scorer(latin: bool) -> Any:
    names = ["rouge1", "rouge2", "rougeLsum"]
    scorer = extra("rouge_score.rouge_scorer").RougeScorer
    return scorer(names, use_stemmer=True) if latin else scorer(names, tokenizer=_AnyScript())
