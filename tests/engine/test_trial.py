"""Trying a way of computing once at load: what agrees, what does not, what is raised, what is remembered."""

from __future__ import annotations

import math

import pytest
import torch

from pipeline.engine.trial import Agreement, Trials, compared, reason_against, trial_tokens


@pytest.mark.parametrize(
    ("agreement", "exact", "reason"),
    [
        (Agreement(0.0, 20.0), True, None),
        (Agreement(0.02, 20.0), True, None),
        (Agreement(0.03, 20.0), True, "its logits differ by 0.03"),
        (Agreement(0.001, 0.1), True, None),
        (Agreement(0.002, 0.1), True, "its logits differ by 0.002"),
        (Agreement(0.9, 20.0), False, None),
        (Agreement(1.1, 20.0), False, "its logits differ by 1.1"),
        (Agreement(math.inf, 20.0), False, "its logits differ by inf"),
    ],
)
def test_logits_agree_within_rounding(agreement: Agreement, exact: bool, reason: str | None) -> None:
    assert reason_against(lambda: agreement, exact=exact) == reason


def test_numbers_that_broke_are_no_agreement() -> None:
    plain = torch.tensor([[1.0, -4.0]])
    assert compared(plain + 0.5, plain) == (0.5, 4.0)
    for broken in (math.nan, math.inf):
        assert compared(torch.tensor([[1.0, broken]]), plain).difference == math.inf


def test_whatever_is_raised_is_a_reason_in_one_line() -> None:
    def no_room() -> Agreement:
        torch.empty(2**58)
        raise AssertionError("the allocator refuses")

    def not_for_it() -> Agreement:
        raise NotImplementedError("no\n  such layer")

    assert "allocate memory" in str(reason_against(no_room, exact=True))
    assert reason_against(not_for_it, exact=True) == "NotImplementedError: no such layer"


def test_an_interrupt_is_no_reason() -> None:
    def interrupted() -> Agreement:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reason_against(interrupted, exact=True)


@pytest.mark.parametrize("vocabulary", [8, 100, 1000, 150_000])
def test_tokens_are_in_the_vocabulary(vocabulary: int) -> None:
    tokens = trial_tokens(40, vocabulary)
    assert len(tokens) == 40
    assert all(3 <= token < min(vocabulary, 1000) for token in tokens)


def test_a_way_is_tried_once_a_load() -> None:
    trials, asked = Trials(), []

    def trial(reason: str | None) -> str | None:
        asked.append(reason)
        return reason

    for _ in range(3):
        assert trials.reason_against("packed passes", lambda: trial(None)) is None
        assert trials.reason_against("prefix reuse", lambda: trial("no")) == "no"
    assert asked == [None, "no"]
    assert Trials().reason_against("packed passes", lambda: "another model") == "another model"
