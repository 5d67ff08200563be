"""Nights whose keys and values lie in host memory beside a card, with a store: what the first puts there, the
second goes on from, and both answer as one document alone on the processor.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from pipeline.engine.reuse.device_time import lasting
from pipeline.records import Decode, Score
from tests.equivalence.equality import assert_equal_texts, reference_text
from tests.equivalence.families import tiny_model
from tests.equivalence.test_families import CONTINUATIONS, END_IDS
from tests.equivalence.test_reuse import DOCUMENTS, NEW_TOKENS, asked, shelf_in
from tests.equivalence.test_stages import MUST_PASS, answers

QUICK = ("gemma3 (sliding and full)",)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in MUST_PASS]
)
def test_offloaded_answers_with_a_store_are_those_of_the_processor(family: str, tmp_path: Path) -> None:
    plain = tiny_model(family)
    model = copy.deepcopy(plain).to("cuda")
    texts, scores = asked(0, 0, Decode(NEW_TOKENS)), asked(1, 10, Score(CONTINUATIONS))
    with shelf_in(tmp_path) as session:
        first = answers(model, session, texts, placement="offloaded")
        assert session.store.counters.stored == len(DOCUMENTS)
    with shelf_in(tmp_path) as session:
        session.computed(1000, lasting(1e6))  # a slow model: reading pays
        second = answers(model, session, texts, placement="offloaded")
        answers(model, session, scores, placement="offloaded")
        assert (session.tally.loaded, session.tally.computed_tokens) == (2 * len(DOCUMENTS), 1000)
    expected = [reference_text(plain, request.ids, END_IDS, NEW_TOKENS) for request in texts]
    for done in (first, second):
        assert assert_equal_texts(expected, [generation.token_ids for generation in done]) <= 1
