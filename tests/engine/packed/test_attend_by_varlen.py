"""Passes by the kernel for rows of different lengths give the answers of the plain way: the calls are made on
a processor, and answered by the kernel's documented formula, one sequence after the other.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention.varlen import AuxRequest

from pipeline.engine.packed import model_runner
from pipeline.engine.packed.ways import BY_VARLEN, by_efficient
from pipeline.records import Decode, Score
from tests.equivalence import test_packed, test_reuse
from tests.equivalence.families import tiny_model
from tests.equivalence.test_families import CONTINUATIONS


def formula(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    queries: torch.Tensor,
    keys: torch.Tensor,
    most_queries: int,
    most_keys: int,
    *,
    return_aux: Any,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.nn.attention.varlen.varlen_attn``: causal is aligned to the last query and the last key."""
    assert return_aux.lse
    assert enable_gqa
    assert {queries.dtype, keys.dtype, seqused_k.dtype} == {torch.int32}
    assert len(keys) == len(queries) == len(seqused_k) + 1
    assert (int(queries[0]), int(queries[-1])) == (0, len(query))
    output, lse = torch.empty(query.shape), torch.empty(query.shape[1], len(query))
    for row, used in enumerate(seqused_k.tolist()):
        begin, end = int(queries[row]), int(queries[row + 1])
        assert 0 < used <= most_keys
        assert 0 < end - begin <= most_queries
        first = int(keys[row])
        k, v = (
            states[first : first + used].repeat_interleave(query.shape[1] // key.shape[1], dim=1)
            for states in (key, value)
        )
        scores = torch.einsum("qhd,khd->hqk", query[begin:end], k) * scale
        if window_size == (-1, 0):
            hidden = torch.ones(end - begin, used, dtype=torch.bool).triu(used - (end - begin) + 1)
            scores = scores.masked_fill(hidden, float("-inf"))
        lse[:, begin:end] = scores.logsumexp(-1)
        output[begin:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
    return output, lse


def efficient_formula(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: None,
    queries: torch.Tensor,
    keys: torch.Tensor,
    most_queries: int,
    most_keys: int,
    dropout: float,
    mask: int,
    computes_lse: bool,
    *,
    scale: float,
    seqlen_k: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """``aten::_efficient_attention_forward``: as many KV heads, causal from the first key on, log-sum-exps
    row by row with room for a multiple of 32 queries.
    """
    assert bias is None
    assert (dropout, computes_lse) == (0.0, True)
    assert query.shape[2] == key.shape[2]
    lengths = queries.diff()
    if mask:
        assert torch.equal(lengths, seqlen_k)
    output, flat = formula(
        *(states[0] for states in (query, key, value)),
        queries,
        keys,
        most_queries,
        most_keys,
        return_aux=AuxRequest(lse=True),
        scale=scale,
        window_size=(-1, 0) if mask else (-1, -1),
        enable_gqa=True,
        seqused_k=seqlen_k,
    )
    lse = torch.full((len(lengths), query.shape[2], -(-most_queries // 32) * 32), float("nan"))
    for row, (begin, end) in enumerate(pairwise(queries.tolist())):
        lse[row, :, : end - begin] = flat[:, begin:end]
    return output[None], lse


@pytest.fixture(autouse=True, params=["varlen", "efficient"])
def _by_varlen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "varlen":
        monkeypatch.setattr(model_runner, "way_for", lambda *_: BY_VARLEN)
        monkeypatch.setattr("pipeline.engine.packed.attend_by_varlen.varlen_attn", formula)
    else:
        monkeypatch.setattr(model_runner, "way_for", lambda model, _: by_efficient(model))
        aten = SimpleNamespace(_efficient_attention_forward=efficient_formula)
        monkeypatch.setattr("pipeline.engine.packed.attend_by_efficient._ATEN", aten)


@pytest.mark.parametrize("prefix_tokens", [pytest.param(0, marks=pytest.mark.full), 20])
@pytest.mark.parametrize("plan", [pytest.param("few rows", marks=pytest.mark.full), "small chunks"])
def test_same_texts(plan: str, prefix_tokens: int) -> None:
    test_packed.test_same_texts("llama (GQA)", plan, prefix_tokens)


@pytest.mark.parametrize("tolerance", [0.0, pytest.param(1e-9, marks=pytest.mark.full)])
def test_same_scores(tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    test_packed.test_same_scores("llama (GQA)", "small chunks", 20, tolerance, monkeypatch)


@pytest.mark.full
def test_rows_of_all_kinds_at_any_time() -> None:
    test_packed.test_rows_come_go_and_are_released_at_any_time()


def test_several_documents_and_questions_in_one_pass() -> None:
    requests = [
        request
        for question, ask in enumerate([Decode(6), Score(CONTINUATIONS)] * 2)
        for request in test_reuse.asked(question % 3, 10 * question, ask)
    ]
    model = tiny_model("llama (GQA)")
    for request, found in zip(requests, test_reuse.answers(model, None, requests), strict=True):
        test_packed._check_alone(model, request, found)
