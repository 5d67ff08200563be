"""Which documents a person should look at: before any run (``sample``), and after one (``review``).

Both read any number of documents one by one and hold a bounded number of candidates. Filled in, the rows are
a gold set. Review rows are the hard cases on purpose: they teach a calibrator most, but the accuracy measured
on them alone is too low for the collection.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.quality.scores import Floats
from pipeline.quality.vectors import clusters, neighbours, similarity, tfidf

CANDIDATES = 5_000
_NEIGHBOURS = 10
_SIMILAR = 0.05
_SUSPICIOUS = 0.5
_UNDECIDED = 0.25


@dataclass(frozen=True, slots=True)
class Answered:
    """A labelled document: ``probabilities`` (calibrated, natural numbers in [0, 1]) in the order of the
    task's labels.
    """

    id: str
    text: str
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Picked:
    """A document to look at and why. ``top`` are the likeliest labels with their probabilities, empty before
    any run.

    ``stands_for`` counts the candidates that it was taken for (its cluster; 1 in a review); ``proposed`` are
    the labels of a task that may give several, whose least certain ones are ``top``.
    """

    id: str
    text: str
    reason: str
    top: tuple[tuple[str, float], ...] = ()
    stands_for: int = 1
    proposed: tuple[str, ...] = ()


def sample(
    documents: Iterable[tuple[str, str]], count: int, *, seed: int = 0, candidates: int = CANDIDATES
) -> list[Picked]:
    """``count`` of the (id, text) documents to label first, spread over what the collection is about; in a
    shuffled order.

    A seeded random choice of at most ``candidates`` is clustered into ``count`` groups; of each the document
    nearest to its centre is taken. Texts that are equal count once.
    """
    kept = _distinct(_reservoir(documents, max(candidates, count), seed))
    if len(kept) <= count:
        picked = [Picked(name, text, "one of all documents") for name, text in kept]
    else:
        numbers, distances = clusters(tfidf([text for _, text in kept]), count, seed)
        picked = [
            _nearest(kept, np.flatnonzero(numbers == number), distances)
            for number in np.unique(numbers).tolist()
        ]
        picked += _filled(kept, picked, count)
    random.Random(seed).shuffle(picked)
    return picked


def review(
    documents: Iterable[Answered],
    labels: Sequence[str],
    count: int,
    *,
    seed: int = 0,
    candidates: int = CANDIDATES,
) -> list[Picked]:
    """The ``count`` most valuable labelled documents to look at, most valuable first.

    Candidates are the least certain documents and a seeded random choice of the others, half and half. Value
    adds up how uncertain a document is (its entropy, normalized to 1) and how suspicious (how little its
    neighbours by text believe its label); each pick lowers the value of documents like it, so that the picks
    are varied.
    """
    kept = uncertain_and_random(documents, max(candidates, count), seed)
    if not kept:
        return []
    probabilities = np.array([document.probabilities for document in kept], dtype=np.float64)
    vectors = tfidf([document.text for document in kept])
    uncertain = entropy(probabilities)
    places, likeness = neighbours(vectors, _NEIGHBOURS)
    believed = _believed(probabilities, places, likeness)
    suspicious = 1 - believed[np.arange(len(kept)), probabilities.argmax(axis=1)]
    chosen = _greedy(uncertain + suspicious, vectors, count)
    return [
        _row(kept[place], labels, probabilities[place], believed[place], likeness[place]) for place in chosen
    ]


def review_several(
    documents: Iterable[Answered],
    labels: Sequence[str],
    count: int,
    *,
    seed: int = 0,
    candidates: int = CANDIDATES,
) -> list[Picked]:
    """The same for tasks with several labels a document: ``probabilities`` are those of yes, one a label,
    each a decision of its own.

    Uncertain is the mean entropy of a document's decisions; suspicious how little its neighbours believe the
    decision they doubt most.
    """
    kept = uncertain_and_random(documents, max(candidates, count), seed, several=True)
    if not kept:
        return []
    yes = np.array([document.probabilities for document in kept], dtype=np.float64)
    vectors = tfidf([document.text for document in kept])
    uncertain = np.mean([entropy(np.column_stack([column, 1 - column])) for column in yes.T], axis=0)
    places, likeness = neighbours(vectors, _NEIGHBOURS)
    believed = _believed(yes, places, likeness)
    doubt = np.where(yes >= 0.5, 1 - believed, believed)
    chosen = _greedy(uncertain + doubt.max(axis=1), vectors, count)
    return [_several_row(kept[place], labels, yes[place], doubt[place]) for place in chosen]


def _several_row(document: Answered, labels: Sequence[str], yes: Floats, doubt: Floats) -> Picked:
    order = np.argsort(np.abs(yes - 0.5), kind="stable")[:3].tolist()
    most = int(np.argmax(doubt))
    parts = []
    if doubt[most] >= _SUSPICIOUS:
        given = "labelled" if yes[most] >= 0.5 else "not labelled"
        parts.append(f"suspicious: {given} {labels[most]}, unlike the documents most like it")
    if abs(yes[order[0]] - 0.5) < _UNDECIDED:
        parts.append(f"uncertain: {labels[order[0]]} {yes[order[0]]:.2f}")
    reason = "; ".join(parts) or "varied: unlike the documents above it in this list"
    proposed = tuple(label for label, odds in zip(labels, yes, strict=True) if odds >= 0.5)
    return Picked(
        document.id,
        document.text,
        reason,
        tuple((labels[place], float(yes[place])) for place in order),
        proposed=proposed,
    )


def entropy(probabilities: Floats) -> Floats:
    """Entropy of each row over that of the uniform distribution: 0 is certain, 1 knows nothing.
    (documents,).
    """
    logs = np.log(np.maximum(probabilities, 1e-300))
    found: Floats = -(probabilities * logs).sum(axis=1) / np.log(max(2, probabilities.shape[1]))
    return found


# ── candidates ──────────────────────────────────────────────────────────────────────────────────────────────


def _reservoir(documents: Iterable[tuple[str, str]], size: int, seed: int) -> list[tuple[str, str]]:
    """A uniform random choice of at most ``size`` (Vitter's algorithm R), in the order read."""
    generator = random.Random(seed)
    kept: list[tuple[int, tuple[str, str]]] = []
    for number, document in enumerate(documents):
        if len(kept) < size:
            kept.append((number, document))
        elif (place := generator.randrange(number + 1)) < size:
            kept[place] = (number, document)
    return [document for _, document in sorted(kept)]


def _distinct(documents: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first document of each text that is not blank."""
    return list({text: (name, text) for name, text in reversed(documents) if text.strip()}.values())[::-1]


def uncertain_and_random(
    documents: Iterable[Answered], size: int, seed: int, *, several: bool = False
) -> list[Answered]:
    """Half of ``size`` the least certain of all, half drawn at random from the rest, in the order read;
    memory for ``size`` only.

    With ``several`` a document is as certain as its least certain yes or no.
    """
    generator = random.Random(seed)
    hard: list[tuple[float, int, Answered]] = []
    drawn: list[tuple[float, int, Answered]] = []
    for number, document in enumerate(documents):
        odds = document.probabilities
        certain = min(max(one, 1 - one) for one in odds) if several else max(odds)
        entry = (-certain, number, document)
        if len(hard) < (size + 1) // 2:
            heapq.heappush(hard, entry)
            continue
        _, number_out, out = heapq.heappushpop(hard, entry)
        ticket = (generator.random(), number_out, out)
        if len(drawn) < size // 2:
            heapq.heappush(drawn, ticket)
        elif drawn:
            heapq.heappushpop(drawn, ticket)
    return [document for _, _, document in sorted(hard + drawn, key=lambda entry: entry[1])]


# ── choice ──────────────────────────────────────────────────────────────────────────────────────────────────


def _nearest(
    kept: Sequence[tuple[str, str]], members: np.ndarray[tuple[int], np.dtype[np.int64]], distances: Floats
) -> Picked:
    name, text = kept[int(members[np.argmin(distances[members])])]
    return Picked(name, text, f"typical of a group of {len(members):,} documents", stands_for=len(members))


def _filled(kept: Sequence[tuple[str, str]], picked: Sequence[Picked], count: int) -> list[Picked]:
    """Further documents where fewer clusters than asked for came out, in the (random) order of the
    candidates.
    """
    taken = {row.text for row in picked}
    rest = [Picked(name, text, "drawn at random") for name, text in kept if text not in taken]
    return rest[: max(0, count - len(picked))]


def _believed(
    probabilities: Floats, places: np.ndarray[tuple[int, int], np.dtype[np.int64]], likeness: Floats
) -> Floats:
    """What the neighbours believe of each document: their probabilities, weighted by likeness; its own where
    it has no likeness to any.
    """
    weights = np.where(likeness >= _SIMILAR, likeness, 0.0)
    total = weights.sum(axis=1, keepdims=True)
    if not weights.shape[1]:
        return probabilities
    mixed = np.einsum("rn,rnk->rk", weights, probabilities[places])
    found: Floats = np.where(total > 0, mixed / np.maximum(total, 1e-12), probabilities)
    return found


def _greedy(value: Floats, vectors: object, count: int) -> list[int]:
    """Rows by value times distance to the nearest one picked (greedy k-center, weighted); copies of a picked
    text are worth nothing.
    """
    distance = np.ones(len(value))
    left = np.ones(len(value), dtype=np.bool_)
    chosen: list[int] = []
    for _ in range(min(count, len(value))):
        worth = np.where(left, (value + 1e-6) * (distance + 1e-6), -1.0)
        place = int(np.argmax(worth))
        chosen.append(place)
        left[place] = False
        distance = np.minimum(distance, np.maximum(0.0, 1 - similarity(vectors, place)))
    return chosen


def _row(
    document: Answered, labels: Sequence[str], probabilities: Floats, believed: Floats, likeness: Floats
) -> Picked:
    order = np.argsort(-probabilities, kind="stable")[:3].tolist()
    top = tuple((labels[place], float(probabilities[place])) for place in order)
    return Picked(document.id, document.text, _reason(labels, probabilities, believed, likeness), top)


def _reason(labels: Sequence[str], probabilities: Floats, believed: Floats, likeness: Floats) -> str:
    """One sentence: suspicious against its neighbours, uncertain, or there for variety."""
    first, second = np.argsort(-probabilities, kind="stable")[:2].tolist() if len(labels) > 1 else (0, 0)
    rival = int(np.argmax(believed))
    parts = []
    if rival != first and 1 - believed[first] >= _SUSPICIOUS:
        near = int((likeness >= _SIMILAR).sum())
        parts.append(
            f"suspicious: labelled {labels[first]}, while the {near} documents most like it are rather "
            f"{labels[rival]}"
        )
    if entropy(probabilities[None])[0] >= 0.5:
        parts.append(
            f"uncertain: {labels[first]} {probabilities[first]:.2f}, {labels[second]} "
            f"{probabilities[second]:.2f}"
        )
    return "; ".join(parts) or "varied: unlike the documents above it in this list"
