"""Summaries: ROUGE of the package, copied stretches and coverage worked out by hand."""

from __future__ import annotations

import pytest

from pipeline.quality.summaries import fragments, measure, rouge

DOCUMENT = (
    "The mayor opened the new bridge on Monday. Critics say that the bridge cost too much. Traffic "
    "will be counted in autumn."
)


def test_fragments_are_taken_greedily() -> None:
    assert fragments(["a", "b", "c", "x", "b", "c", "d"], ["b", "c", "d", "e", "a", "b", "c"]) == [3, 3]
    assert fragments(["x", "y"], ["a", "b"]) == []
    assert fragments([], ["a"]) == []


def test_a_copied_summary_and_one_in_own_words() -> None:
    copied = measure("The mayor opened the new bridge on Monday.", DOCUMENT)
    assert (copied.words, copied.copied, copied.density) == (8, 1.0, 8.0)
    own = measure("Expensive crossing finally usable", DOCUMENT)
    assert (own.copied, own.density, own.coverage) == (0.0, 0.0, 0.0)


def test_coverage_counts_the_parts_of_the_document_that_are_told() -> None:
    document = " ".join(f"topic{number} filler filler" for number in range(10))
    assert measure("topic0 topic4 topic9", document).coverage == pytest.approx(0.3)
    assert measure(" ".join(f"topic{number}" for number in range(10)), document).coverage == 1.0


def test_rouge_by_hand() -> None:
    found = rouge("the cat sat", "the cat sat on the mat")
    assert found["rouge1"] == pytest.approx(2 * 1.0 * 0.5 / 1.5)
    assert found["rouge2"] == pytest.approx(2 * 1.0 * 0.4 / 1.4)
    assert measure("the cat sat", DOCUMENT, "the cat sat").rouge_l == pytest.approx(1.0)


def test_other_scripts_have_words_too() -> None:
    assert rouge("мост открыт", "мост открыт сегодня")["rouge1"] == pytest.approx(0.8)


def test_empty_texts() -> None:
    found = measure("", "", "")
    assert (found.words, found.copied, found.coverage, found.rouge1) == (0, 0.0, 0.0, 0.0)
