"""What a person is shown first: spread out, seeded, with reasons that are true."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from pipeline.quality.selection import Answered, entropy, review, sample

LABELS = ("sport", "money")
_WORDS = {
    "sport": ["match", "goal", "team", "league", "coach", "striker", "season", "referee", "stadium", "cup"],
    "money": [
        "bank",
        "shares",
        "market",
        "profit",
        "bonds",
        "trader",
        "price",
        "budget",
        "loan",
        "inflation",
    ],
    "space": ["orbit", "rocket", "moon", "telescope", "comet", "launch", "probe", "planet", "crater", "star"],
}


def text(topic: str, seed: int) -> str:
    return " ".join(random.Random(seed).choices(_WORDS[topic], k=12))


def collection(sizes: dict[str, int]) -> list[tuple[str, str]]:
    return [
        (f"{topic}-{number}", text(topic, number)) for topic, size in sizes.items() for number in range(size)
    ]


def test_a_sample_reaches_rare_topics_is_seeded_and_has_no_repeats() -> None:
    documents = collection({"sport": 300, "money": 280, "space": 12})
    picked = sample(documents, 12, seed=1)
    assert len({row.id for row in picked}) == 12
    assert set(Counter(row.id.partition("-")[0] for row in picked)) == {"sport", "money", "space"}
    assert sum(row.stands_for for row in picked) == len({content for _, content in documents})
    assert sample(documents, 12, seed=1) == picked
    assert sample(documents, 12, seed=2) != picked


def test_a_sample_of_few_equal_or_blank_documents() -> None:
    assert sample([], 5) == []
    assert [row.id for row in sample([("a", "one two"), ("b", "one two"), ("c", "  ")], 5)] == ["a"]
    same_words = [
        (str(number), "!" * (number + 1)) for number in range(20)
    ]  # nothing a vector could be made of
    assert len(sample(same_words, 4)) == 4


def test_memory_is_bounded_by_the_candidates() -> None:
    held = 0

    def many() -> Iterator[tuple[str, str]]:
        nonlocal held
        for number in range(20_000):
            held += 1
            yield str(number), text("sport", number)

    assert len(sample(many(), 5, candidates=50)) == 5
    assert held == 20_000
    drawn = {row.id for seed in range(6) for row in sample(many(), 5, candidates=50, seed=seed)}
    assert max(map(int, drawn)) > 10_000  # not only the beginning


def answers(sizes: dict[str, int], sureness: float = 0.97) -> list[Answered]:
    rows = []
    for name, content in collection(sizes):
        sport = sureness if name.startswith("sport") else 1 - sureness
        rows.append(Answered(name, content, (sport, 1 - sport)))
    return rows


def test_review_finds_the_uncertain_and_the_suspicious() -> None:
    rows = answers({"sport": 60, "money": 60})
    rows.append(Answered("torn", text("sport", 900), (0.52, 0.48)))
    rows.append(Answered("wrong", text("money", 901), (0.96, 0.04)))
    picked = review(rows, LABELS, 6)
    first_two = {row.id: row for row in picked[:2]}
    assert set(first_two) == {"torn", "wrong"}
    assert first_two["torn"].reason.startswith("uncertain: sport 0.52, money 0.48")
    assert "suspicious: labelled sport" in first_two["wrong"].reason
    assert "rather money" in first_two["wrong"].reason
    assert first_two["wrong"].top[0] == ("sport", pytest.approx(0.96))
    assert all(row.reason for row in picked)
    assert review(rows, LABELS, 6) == picked


def test_review_does_not_show_the_same_text_twice_while_others_are_left() -> None:
    rows = answers({"sport": 30, "money": 30}, sureness=0.8)
    rows += [Answered(f"copy-{number}", text("sport", 950), (0.5, 0.5)) for number in range(10)]
    picked = review(rows, LABELS, 10)
    assert sum(row.id.startswith("copy") for row in picked) == 1


def test_review_keeps_the_least_certain_however_many_there_are() -> None:
    rows = answers({"sport": 3000}, sureness=0.99)
    rows.insert(1234, Answered("torn", text("money", 77), (0.5, 0.5)))
    picked = review(iter(rows), LABELS, 3, candidates=40)
    assert picked[0].id == "torn"


def test_review_of_nothing_one_and_wordless_documents() -> None:
    assert review([], LABELS, 5) == []
    assert [row.id for row in review([Answered("a", "text", (0.6, 0.4))], LABELS, 5)] == ["a"]
    assert len(review([Answered(str(n), "…", (0.6, 0.4)) for n in range(4)], LABELS, 3)) == 3


def test_entropy_is_normalized() -> None:
    assert entropy(np.array([[0.25] * 4, [1.0, 0, 0, 0]])).tolist() == [
        pytest.approx(1.0),
        pytest.approx(0.0),
    ]
