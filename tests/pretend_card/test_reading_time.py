"""How long reading takes is the card's time, not that of its launches, and nobody waits to know it: by a
pretended clock on a card that is slow, so that launches take no time beside it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.records import Decode
from tests.equivalence.families import tiny_model
from tests.equivalence.test_reuse import DOCUMENTS, asked, shelf_in
from tests.equivalence.test_reuse import answers as packed_answers
from tests.equivalence.test_stages import answers

CARD = torch.device("cuda", 0)
_BYTES_PER_SECOND = 1e8
_TOKENS = 1000


@pytest.fixture(autouse=True)
def _slow_card(cards: Callable[..., None]) -> None:
    from tests.pretend_card.clock import Costs, set_costs

    cards("8GiB")
    set_costs(Costs(card_bytes_per_second=_BYTES_PER_SECOND))


def test_a_span_is_known_when_the_card_has_got_there(tmp_path: Path) -> None:
    from tests.pretend_card.clock import host_seconds, ticking

    values = torch.ones(2**20, device=CARD)
    with shelf_in(tmp_path) as session, ticking():
        torch.cuda.synchronize()
        began, watch = host_seconds(), session.stopwatch(CARD)
        values.add_(1)
        session.computed(_TOKENS, watch.so_far())
        assert session.prefill_tokens_per_second is None
        assert host_seconds() - began < 1e-3  # nobody waited
        torch.cuda.synchronize()
        assert session.prefill_tokens_per_second == pytest.approx(
            _TOKENS * _BYTES_PER_SECOND / (2 * values.nbytes), rel=0.1
        )


def test_reading_or_computing_is_chosen_by_the_cards_time(tmp_path: Path, card: Any) -> None:
    """Reading takes half as long as the card computes, and many times as long as its launches."""
    from tests.pretend_card.clock import card_seconds, ticking

    model = copy.deepcopy(tiny_model("llama (GQA)")).to(CARD)
    with shelf_in(tmp_path) as session, ticking():
        began = card_seconds()
        answers(model, session, asked(0, 0, Decode(1)))
        torch.cuda.synchronize()
        taken, speed = card_seconds() - began, session.prefill_tokens_per_second
        assert speed is not None
        computed = session.tally.computed_tokens / speed
        assert 0.5 * taken < computed <= taken
        size = session.store.counters.stored_bytes
        session.store.speeds.read(1 << 30, (1 << 30) / size * taken / 2)
        answers(model, session, asked(1, 10, Decode(1)))
        assert (session.tally.loaded, session.tally.recomputed) == (len(DOCUMENTS), 0)


def test_packed_passes_are_timed_alike(tmp_path: Path) -> None:
    from tests.pretend_card.clock import card_seconds, ticking

    model = copy.deepcopy(tiny_model("llama (GQA)")).to(CARD)
    with shelf_in(tmp_path) as session, ticking():
        began = card_seconds()
        packed_answers(model, session, asked(0, 0, Decode(1)))
        torch.cuda.synchronize()
        taken, speed = card_seconds() - began, session.prefill_tokens_per_second
        assert speed is not None
        assert 0.3 * taken < session.tally.computed_tokens / speed <= taken
