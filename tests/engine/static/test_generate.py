"""Prefill in chunks over padding, the decode loop's ways to end, sampling in any company."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.engine.model.forward import Forward, left_padded
from pipeline.engine.static.generate import NON_FINITE, PassLimits, Reply, generate, joined, prefill, selected
from pipeline.records import Decode, Sampling
from tests.equivalence.equality import reference_text
from tests.equivalence.families import QUICK, VOCABULARY, prompts, tiny_model

LENGTHS = (60, 33, 20, 2)


def settings(chunk: int = 10_000, placement: Any = "device") -> PassLimits:
    return PassLimits(chunk, 8, 10_000, placement, pad_id=0)


def test_left_padding_counts_real_tokens() -> None:
    ids, mask, positions = left_padded([(5, 6, 7), (8,)], 0, torch.device("cpu"))
    assert ids.tolist() == [[5, 6, 7], [0, 0, 8]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert positions.tolist() == [[0, 1, 2], [0, 0, 0]]


@pytest.mark.parametrize("placement", ["device", "offloaded"])
@pytest.mark.parametrize(
    "chunk", [4, 28, 100, 10_000]
)  # 1, 7, 25, all columns a pass: the first are only padding for short rows
@pytest.mark.parametrize("family", QUICK)
def test_padded_chunked_prefill_gives_each_rows_own_logits(family: str, chunk: int, placement: Any) -> None:
    forward = Forward(tiny_model(family))
    with torch.inference_mode():
        rows = prefill(forward, prompts(LENGTHS), settings(chunk, placement))
        alone = [prefill(forward, [prompt], settings()) for prompt in prompts(LENGTHS)]
    torch.testing.assert_close(rows.logits, torch.cat([row.logits for row in alone]), atol=2e-4, rtol=1e-4)
    assert rows.positions.tolist() == list(LENGTHS)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_passes_of_nothing_but_padding_stay_finite_in_bfloat16(attention: str) -> None:
    forward = Forward(tiny_model("llama (GQA)", torch.bfloat16, attention))
    with torch.inference_mode():
        rows = prefill(forward, prompts(LENGTHS), settings(4))
        alone = [prefill(forward, [prompt], settings()) for prompt in prompts(LENGTHS)]
    assert rows.logits.dtype == torch.float32
    torch.testing.assert_close(rows.logits, torch.cat([row.logits for row in alone]), atol=0.3, rtol=0.05)


def test_passes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Forward(tiny_model("llama (GQA)"))
    sizes: list[int] = []
    right = Forward.__call__

    def counted(self: Forward, ids: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        sizes.append(ids.numel())
        return right(self, ids, *rest, **named)

    monkeypatch.setattr(Forward, "__call__", counted)
    with torch.inference_mode():
        prefill(forward, prompts(LENGTHS), settings(chunk=40))
    assert sum(sizes) == 4 * 60
    assert max(sizes) == 40


def test_rows_joined_and_selected_keep_their_own_state() -> None:
    forward = Forward(tiny_model("llama (GQA)"))
    with torch.inference_mode():
        parts = [prefill(forward, [prompt], settings()) for prompt in prompts(LENGTHS)]
        logits = torch.cat([part.logits for part in parts])
        rows = joined(parts)
        twice = selected(rows, [3, 1, 3])
    assert rows.mask.sum(1).tolist() == list(LENGTHS)
    assert twice.positions.tolist() == [2, 33, 2]
    assert torch.equal(twice.logits, logits[[3, 1, 3]])


class Scripted(torch.nn.Module):
    """A real model whose logits are then pushed towards given tokens: row by position, whatever the batch."""

    def __init__(self, push: Any) -> None:
        super().__init__()
        self.inner = tiny_model("llama (GQA)")
        self.config = self.inner.config
        self.push = push

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any,
        position_ids: Any,
        cache: Any,
        logits_to_keep: int,
        **rest: Any,
    ) -> Any:
        output = self.inner(
            input_ids, attention_mask, position_ids, cache, logits_to_keep=logits_to_keep, **rest
        )
        for row, position in enumerate(position_ids[:, -1].tolist()):
            self.push(output.logits[row, -1], position)
        return output


def ends_of(push: Any, lengths: tuple[int, ...] = (10, 20), limit: int = 100) -> list[Reply]:
    return generate(
        Forward(Scripted(push)), prompts(lengths), [Decode(limit)] * len(lengths), {2, 3}, settings()
    )


def test_stops_on_any_end_token() -> None:
    def push(logits: torch.Tensor, position: int) -> None:
        logits[2:4] = -100.0
        if position == 14:
            logits[3] = 100.0
        if position == 24:
            logits[2] = 100.0

    replies = ends_of(push)
    assert [(len(reply.token_ids), reply.finish_reason) for reply in replies] == [(5, "stop"), (5, "stop")]
    assert all(token not in (2, 3) for reply in replies for token in reply.token_ids)


def test_loop_is_cut_and_the_other_rows_go_on() -> None:
    def push(logits: torch.Tensor, position: int) -> None:
        logits[2:4] = -100.0
        period = (position % 5) + 50
        if position < 300:  # row of the long prompt starts at 300
            logits[period] = 1e6

    replies = ends_of(push, (10, 301), limit=70)
    assert replies[0].finish_reason == "repetition"
    assert [token for token in replies[0].token_ids if token not in range(50, 55)] == []
    assert len(replies[0].token_ids) == 5
    assert (len(replies[1].token_ids), replies[1].finish_reason) == (70, "length")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_an_error_of_their_row_only(bad: float) -> None:
    def push(logits: torch.Tensor, position: int) -> None:
        if position == 13:
            logits[77] = bad

    replies = ends_of(push, limit=9)
    assert replies[0] == Reply([], "error", NON_FINITE)
    assert replies[1].error is None
    assert replies[1].token_ids


def test_sampling_does_not_depend_on_company() -> None:
    forward = Forward(tiny_model("llama (GQA)"))
    asks = [Decode(30, Sampling(temperature=1.0, top_p=0.95, top_k=50, seed=seed)) for seed in (5, 6, 7, 8)]
    ends: set[int] = set(range(3, 15))
    together = generate(forward, prompts(LENGTHS), asks, ends, settings())
    reverse = generate(forward, prompts(LENGTHS)[::-1], asks[::-1], ends, settings(64))[::-1]
    alone = [
        generate(forward, [prompt], [ask], ends, settings())[0]
        for prompt, ask in zip(prompts(LENGTHS), asks, strict=True)
    ]
    assert together == reverse == alone
    other = generate(forward, [prompts(LENGTHS)[0]], [Decode(30, Sampling(1.0, seed=99))], ends, settings())[
        0
    ]
    assert other.token_ids != alone[0].token_ids
    greedy = generate(forward, [prompts(LENGTHS)[0]], [Decode(30)], ends, settings())[0]
    assert (
        tuple(greedy.token_ids)
        == reference_text(tiny_model("llama (GQA)"), prompts(LENGTHS)[0], ends, 30).tokens
    )


def test_limits_are_each_rows_own() -> None:
    forward = Forward(tiny_model("gpt_neox (MHA)"))
    replies = generate(
        forward, prompts((9, 9, 9)), [Decode(1), Decode(17), Decode(4)], {VOCABULARY + 5}, settings()
    )
    assert [len(reply.token_ids) for reply in replies] == [1, 17, 4]
