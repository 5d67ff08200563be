"""Examples: varied, within the budget, the same whatever the order of the gold set, and known by id."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.quality.examples import Example, choose_examples

LABELS = ("ham", "spam")


def words(text: str) -> int:
    return len(text.split())


GOLD = [
    Example("h1", "see you at lunch today", "ham"),
    Example("h2", "see you at lunch tomorrow", "ham"),
    Example("h3", "the train is late again", "ham"),
    Example("s1", "win a free prize now", "spam"),
    Example("s2", "win a free prize today", "spam"),
    Example("s3", "cheap loans call this number", "spam"),
]


def test_examples_are_varied_and_of_every_label() -> None:
    found = choose_examples(GOLD, LABELS, 2, budget_tokens=1000, count_tokens=words)
    assert len(found.shown) == 4
    assert {"h3", "s3"} < found.ids  # the nearly equal pairs are not both shown
    assert found.notes == ()
    assert found.tokens == sum(words(example.text) for example in found.shown)


def test_the_order_is_the_seeds_and_not_that_of_the_gold_set() -> None:
    one = choose_examples(GOLD, LABELS, 3, budget_tokens=1000, count_tokens=words, seed=5)
    assert choose_examples(GOLD[::-1], LABELS, 3, budget_tokens=1000, count_tokens=words, seed=5) == one
    orders = {
        tuple(
            example.id
            for example in choose_examples(
                GOLD, LABELS, 3, budget_tokens=1000, count_tokens=words, seed=seed
            ).shown
        )
        for seed in range(6)
    }
    assert len(orders) > 1


def test_long_texts_are_cut_to_a_common_length_and_short_ones_kept_whole() -> None:
    gold = [Example("long", "word " * 500, "ham"), Example("short", "win a prize", "spam")]
    found = choose_examples(gold, LABELS, 1, budget_tokens=60, count_tokens=words)
    by_id = {example.id: example for example in found.shown}
    assert by_id["short"].text == "win a prize"
    assert by_id["long"].cut
    assert 50 < words(by_id["long"].text) <= 57
    assert found.tokens <= 60
    assert "cut" in found.notes[0]


def test_a_budget_too_small_for_all_shows_fewer() -> None:
    gold = [
        Example(f"{label}{number}", f"{label} " * 40 + str(number), label)
        for label in LABELS
        for number in range(8)
    ]
    found = choose_examples(gold, LABELS, 8, budget_tokens=100, count_tokens=words)
    assert len(found.shown) == 6
    assert found.tokens <= 100
    assert "3 instead of 8" in found.notes[0]


def test_a_label_without_documents_is_told_and_a_foreign_one_refused() -> None:
    found = choose_examples(GOLD[:3], LABELS, 2, budget_tokens=1000, count_tokens=words)
    assert "'spam'" in found.notes[0]
    with pytest.raises(UsageError, match="'eggs'"):
        choose_examples([Example("x", "text", "eggs")], LABELS, 2, budget_tokens=1000, count_tokens=words)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.text(max_size=80), st.sampled_from(LABELS)), max_size=12),
    st.integers(1, 5),
    st.integers(0, 200),
)
def test_the_budget_always_holds(rows: list[tuple[str, str]], per_label: int, budget: int) -> None:
    gold = [Example(str(number), text, label) for number, (text, label) in enumerate(rows)]
    found = choose_examples(gold, LABELS, per_label, budget_tokens=budget, count_tokens=len)
    assert sum(len(example.text) for example in found.shown) <= budget
    for label in LABELS:
        assert sum(example.label == label for example in found.shown) <= per_label
