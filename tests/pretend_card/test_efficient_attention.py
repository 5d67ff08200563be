"""The memory-efficient kernel on the card: its numbers, its shapes, its refusals, and packed passes by it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engine.packed.engine import PackedEngine
from pipeline.engine.packed.ways import way_for
from pipeline.engine.static.engine import StaticEngine
from pipeline.records import Decode, Generation, Request, Score
from tests.equivalence import test_reuse
from tests.equivalence.families import tiny_model
from tests.equivalence.test_families import CONTINUATIONS
from tests.pretend_card.engines import Case as EngineCase
from tests.pretend_card.engines import folder_of, loaded_on, run
from tests.pretend_card.test_packed_answers import PLAN

Cards = Callable[..., None]
Case = dict[str, Any]
HEADS, WIDTH = 4, 16
EFFICIENT = "memory-efficient attention over rows of different lengths"
forward = torch.ops.aten._efficient_attention_forward


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def _case(queries: tuple[int, ...], room: tuple[int, ...], used: tuple[int, ...], dtype: torch.dtype) -> Case:
    """Sequences that each have a run of ``room`` keys, of which they use some."""
    made = torch.Generator().manual_seed(1)
    states = (torch.randn(1, sum(count), HEADS, WIDTH, generator=made) for count in (queries, room, room))
    q, k, v = (each.to(dtype).to("cuda") for each in states)
    return {
        "query": q,
        "key": k,
        "value": v,
        "bias": None,
        "cu_seqlens_q": _ints(0, *accumulate(queries)),
        "cu_seqlens_k": _ints(0, *accumulate(room)),
        "max_seqlen_q": max(queries),
        "max_seqlen_k": max(room),
        "dropout_p": 0.0,
        "custom_mask_type": 0,
        "compute_log_sumexp": True,
        "seqlen_k": _ints(*used),
    }


def _plainly(case: Case, row: int, first: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence by the definition, in float64. ``first``: the place of the first query among the keys,
    where each sees those up to its own; None where all see all.
    """
    begins_q, begins_k, used = (case[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_k", "seqlen_k"))
    q = case["query"].cpu().double()[0, begins_q[row] : begins_q[row + 1]]
    k, v = (
        case[name].cpu().double()[0, begins_k[row] : begins_k[row] + used[row]] for name in ("key", "value")
    )
    out, lse = torch.zeros_like(q), torch.full((HEADS, len(q)), -math.inf, dtype=torch.float64)
    for query in range(len(q)):
        seen = [key for key in range(len(k)) if first is None or key <= first + query]
        for head in range(HEADS if seen else 0):
            scores = k[seen, head] @ q[query, head] / math.sqrt(WIDTH)
            out[query, head] = torch.softmax(scores, 0) @ v[seen, head]
            lse[head, query] = torch.logsumexp(scores, 0)
    return out, lse


@pytest.mark.parametrize("mask", [0, 1, 2])
@pytest.mark.parametrize(
    ("size", "dtype"), [("t4", torch.float16), ("t4", torch.float32), ("rtx4060", torch.bfloat16)]
)
def test_numbers_and_shapes_are_those_of_the_definition(
    cards: Cards, size: str, dtype: torch.dtype, mask: int
) -> None:
    """Lines of the log-sum-exp are for a multiple of 32 queries; what is over is +inf."""
    cards(size)
    queries, used = (2, 33, 1), (7, 40, 0)
    case = _case(queries, (10, 48, 4), used, dtype) | {"custom_mask_type": mask}
    out, lse, _, _, *lengths = forward(**case)
    assert (out.shape, lse.shape, lse.dtype) == (case["query"].shape, (3, HEADS, 64), torch.float32)
    assert lengths == [33, 48]
    begins = case["cu_seqlens_q"].tolist()
    for row, count in enumerate(queries):
        first = None if mask == 0 else 0 if mask == 1 else used[row] - count
        expected, sums = _plainly(case, row, first)
        found = out[0, begins[row] : begins[row + 1]].cpu().double()
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(lse[row, :, :count].cpu().double(), sums, atol=1e-3, rtol=1e-3)
        assert lse[row, :, count : -(-count // 32) * 32].isposinf().all()


def test_bytes_are_those_of_the_keys_in_use(card: Any) -> None:
    case = _case((1, 1), (100, 100), (7, 20), torch.bfloat16)
    card.reset_counts()
    forward(**case)
    assert card.counts()["bytes read by kernels"] == 27 * 2 * HEADS * WIDTH * 2 + case["query"].nbytes
    assert card.counts()["op efficient_attention::fwd"] == 1


Change = Callable[[Case], None]


def _of_type(dtype: torch.dtype) -> Change:
    return lambda case: case.update({name: case[name].to(dtype) for name in ("query", "key", "value")})


def _of_width(width: int) -> Change:
    def change(case: Case) -> None:
        for name in ("query", "key", "value"):
            shape = (*case[name].shape[:-1], width)
            case[name] = torch.zeros(shape, dtype=case[name].dtype, device="cuda")

    return change


def _beside(case: Case) -> None:
    """Queries that begin a number behind where they should."""
    room = torch.zeros(case["query"].numel() + 1, dtype=torch.float16, device="cuda")
    case["query"] = room[1:].view(case["query"].shape)


def _changed(name: str, change: Callable[[Any], Any]) -> Change:
    return lambda case: case.update({name: change(case[name])})


REFUSED: dict[str, tuple[Change, str]] = {
    "doubles": (_of_type(torch.float64), "Only fp32, half & bf16"),
    "mixed types": (_changed("key", torch.Tensor.float), "another type"),
    "three dimensions": (_changed("query", lambda q: q[0]), r"query.dim\(\) == 4"),
    "grouped heads": (_changed("query", lambda q: q.repeat(1, 1, 2, 1)), r"query.size\(2\) == key.size\(2\)"),
    "other values": (_changed("value", lambda v: v[:, 1:]), r"key.size\(1\) == value.size\(1\)"),
    "bounds of queries only": (_changed("cu_seqlens_k", lambda _: None), "seqstart_k.has_value"),
    "long bounds": (_changed("cu_seqlens_k", torch.Tensor.long), "seqstart_k->scalar_type"),
    "bounds of the host": (_changed("cu_seqlens_q", torch.Tensor.cpu), "must be a CUDA tensor"),
    "too many bounds": (_changed("cu_seqlens_k", lambda b: torch.cat([b, b[-1:]])), "seqstart_k->size"),
    "unknown longest": (_changed("max_seqlen_q", lambda _: None), "max_seqlen_q_.has_value"),
    "long counts": (_changed("seqlen_k", torch.Tensor.long), "seqlen_k->scalar_type"),
    "counts of the host": (_changed("seqlen_k", torch.Tensor.cpu), "must be a CUDA tensor"),
    "turned keys": (_changed("key", lambda k: k.transpose(1, 3).contiguous().transpose(1, 3)), "contiguous"),
    "another mask": (_changed("custom_mask_type", lambda _: 3), "invalid value for `custom_mask_type`"),
    "odd heads": (_of_width(20), "no kernel found to launch"),
    "misaligned queries": (_beside, "not correctly aligned"),
    "more queries than said": (_changed("max_seqlen_q", lambda _: 2), "more than max_seqlen_q"),
    "keys beyond the memory": (_changed("cu_seqlens_k", lambda _: _ints(0, 12, 24)), "illegal memory access"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(card: Any, name: str) -> None:
    change, message = REFUSED[name]
    case = _case((2, 3), (10, 6), (7, 6), torch.float16)
    forward(**case)
    change(case)
    with pytest.raises((RuntimeError, torch.AcceleratorError), match=message):
        forward(**case)


@pytest.mark.parametrize(
    ("capability", "dtype", "width", "runs"),
    [
        ("7.5", torch.float16, 16, True),
        ("7.5", torch.float16, 20, True),  # by a kernel for memory that is less aligned
        ("7.5", torch.float16, 18, False),
        ("7.0", torch.float16, 18, True),
        ("7.0", torch.float16, 17, False),
        ("6.1", torch.float16, 17, True),  # no tensor cores
        ("7.5", torch.float32, 17, True),
        ("8.6", torch.float32, 18, False),
        ("8.6", torch.float32, 20, True),
        ("7.5", torch.bfloat16, 16, False),
        ("12.0", torch.bfloat16, 16, True),
        ("12.0", torch.bfloat16, 20, False),
        ("3.7", torch.float32, 16, False),
    ],
)
def test_which_heads_and_types_have_a_kernel(
    cards: Cards, capability: str, dtype: torch.dtype, width: int, runs: bool
) -> None:
    cards("8GiB", capability=capability)
    case = _case((2, 3), (10, 6), (7, 6), dtype)
    _of_width(width)(case)
    if runs:
        assert forward(**case)[0].shape == case["query"].shape
    else:
        with pytest.raises(RuntimeError, match="no kernel found to launch"):
            forward(**case)


def answered(model: Any, requests: list[Request]) -> list[Generation]:
    static = StaticEngine(model, PLAN, end_ids=(), pad_id=0)
    engine = PackedEngine(model, PLAN, end_ids=(), static=static, window=None)
    engine.admit(requests)
    found: list[Generation] = []
    while not engine.idle:
        found += engine.step()
    model.set_attn_implementation("sdpa")
    return sorted(found, key=lambda generation: generation.request_id)


@pytest.mark.parametrize(
    ("size", "family"),
    [
        ("t4", "llama (GQA)"),
        *(
            pytest.param(size, family, marks=pytest.mark.full)
            for size, family in [("t4", "gpt_neox (MHA)"), ("rtx4060", "llama (GQA)"), ("t4", "gpt2")]
        ),
    ],
)
def test_documents_and_questions_of_all_kinds_are_answered_as_on_the_processor(
    cards: Cards, card: Any, size: str, family: str
) -> None:
    """Shared instructions, shared documents, texts and label trees side by side, in float32."""
    cards(size)
    requests = [
        request
        for question, ask in enumerate([Decode(6), Score(CONTINUATIONS)] * 2)
        for request in test_reuse.asked(question % 3, 10 * question, ask)
    ]
    near = tiny_model(family)
    far = copy.deepcopy(near).to("cuda")
    assert way_for(far, torch.device("cuda", 0)).name == EFFICIENT
    card.reset_counts()
    for one, other in zip(answered(far, requests), answered(near, requests), strict=True):
        assert (one.error, one.token_ids) == (None, other.token_ids)
        assert one.scores == pytest.approx(other.scores, abs=1e-4)
    assert card.counts()["op efficient_attention::fwd"] > 0


@pytest.mark.parametrize("quantization", ["nf4", pytest.param("none", marks=pytest.mark.full)])
def test_halves_on_a_t4_are_answered_as_on_the_processor(
    cards: Cards, card: Any, quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards("t4")
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))
    case, folder = EngineCase("packed", quantization, "float16"), folder_of(tmp_path)
    loaded = loaded_on(folder, quantization, "float16")
    assert way_for(loaded.model, torch.device("cuda", 0)).name == EFFICIENT
    assert run(case, loaded, folder, tmp_path / "store") <= 2
    assert card.counts()["op efficient_attention::fwd"] > 0
