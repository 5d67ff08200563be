"""``varlen_attn`` on the card: its numbers, its shapes, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.varlen import AuxRequest, varlen_attn

Cards = Callable[..., None]
HEADS, GROUPS, WIDTH = 8, 2, 16


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def _case(
    queries: tuple[int, ...], room: tuple[int, ...], used: tuple[int, ...], dtype: torch.dtype
) -> dict[str, Any]:
    """Sequences that each have a run of ``room`` keys, of which they use some."""
    made = torch.Generator().manual_seed(1)
    q = torch.randn(sum(queries), HEADS, WIDTH, generator=made).to(dtype)
    k, v = (torch.randn(sum(room), GROUPS, WIDTH, generator=made).to(dtype) for _ in "kv")
    return {
        "query": q.to("cuda"),
        "key": k.to("cuda"),
        "value": v.to("cuda"),
        "cu_seq_q": _ints(0, *_sums(queries)),
        "cu_seq_k": _ints(0, *_sums(room)),
        "max_q": max(queries),
        "max_k": max(room),
        "enable_gqa": True,
        "seqused_k": _ints(*used),
    }


def _sums(counts: tuple[int, ...]) -> list[int]:
    return [sum(counts[: end + 1]) for end in range(len(counts))]


def _plainly(case: dict[str, Any], row: int, window: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence by the definition: every query looks at every key that it may see, in float64."""
    begins_q, begins_k, used = (case[name].tolist() for name in ("cu_seq_q", "cu_seq_k", "seqused_k"))
    q = case["query"].cpu().double()[begins_q[row] : begins_q[row + 1]]
    k, v = (case[name].cpu().double()[begins_k[row] : begins_k[row] + used[row]] for name in ("key", "value"))
    out, lse = torch.zeros_like(q), torch.full((HEADS, len(q)), math.inf)
    for i in range(len(q)):
        place = i + len(k) - len(q)
        seen = [
            j
            for j in range(len(k))
            if (window[0] < 0 or j >= place - window[0]) and (window[1] < 0 or j <= place + window[1])
        ]
        for head in range(HEADS if seen else 0):
            group = head // (HEADS // GROUPS)
            scores = k[seen, group] @ q[i, head] / math.sqrt(WIDTH)
            out[i, head] = torch.softmax(scores, 0) @ v[seen, group]
            lse[head, i] = torch.logsumexp(scores, 0)
    return out, lse


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 0), (2, 1)])
@pytest.mark.parametrize("queries", [(2, 3, 1), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_and_shapes_are_those_of_the_definition(
    card: Any, window: tuple[int, int], queries: tuple[int, ...], dtype: torch.dtype
) -> None:
    case = _case(queries, (10, 6, 4), (7, 3, 0), dtype)
    out, lse = varlen_attn(**case, window_size=window, return_aux=AuxRequest(lse=True))
    assert out.shape == case["query"].shape
    assert (lse.shape, lse.dtype) == ((HEADS, sum(queries)), torch.float32)
    begins = case["cu_seq_q"].tolist()
    for row in range(len(queries)):
        rows = slice(begins[row], begins[row + 1])
        expected, sums = _plainly(case, row, window)
        torch.testing.assert_close(out[rows].cpu().double(), expected, atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(lse[:, rows].cpu(), sums.float(), atol=1e-3, rtol=1e-3)


def test_bytes_are_those_of_the_keys_in_use(card: Any) -> None:
    case = _case((1, 1), (100, 100), (7, 20), torch.bfloat16)
    card.reset_counts()
    varlen_attn(**case, window_size=(-1, 0))
    used = 27 * 2 * GROUPS * WIDTH * 2
    assert card.counts()["bytes read by kernels"] == used + case["query"].nbytes
    assert card.counts()["op flash_attn::varlen_fwd"] == 1


def test_grouped_heads_with_one_query_each_are_swapped_by_copies(card: Any, cards: Cards) -> None:
    """Without a window, heads of a group become queries: two copies, and a kernel more if keys are split."""
    cards("rtx3090")
    case = _case((1, 1), (100, 100), (7, 20), torch.bfloat16)
    card.reset_counts()
    varlen_attn(**case)
    assert card.counts()["op copy on the card"] == 2
    card.reset_counts()
    varlen_attn(**{**case, "max_k": 4000})
    assert card.counts()["op flash_attn::combine"] == 1


Change = Callable[[dict[str, Any]], None]


def _wide(case: dict[str, Any]) -> None:
    for name in ("query", "key", "value"):
        case[name] = case[name].float()


def _of_width(width: int) -> Change:
    def change(case: dict[str, Any]) -> None:
        for name in ("query", "key", "value"):
            rows, heads, _ = case[name].shape
            case[name] = torch.zeros(rows, heads, width, dtype=torch.float16, device="cuda")

    return change


def _turned(case: dict[str, Any]) -> None:
    case["key"] = case["key"].transpose(1, 2).contiguous().transpose(1, 2)


REFUSED: dict[str, tuple[Change, str]] = {
    "float32": (_wide, "only support fp16 and bf16"),
    "mixed types": (lambda c: c.update(key=c["key"].bfloat16()), "query and key must have the same dtype"),
    "wide heads": (_of_width(264), "head dimension at most 256"),
    "odd heads": (_of_width(20), "multiple of 8"),
    "long lengths": (lambda c: c.update(cu_seq_k=c["cu_seq_k"].long()), "cu_seqlens_k must have dtype int32"),
    "long counts": (lambda c: c.update(seqused_k=c["seqused_k"].long()), "seqused_k must have dtype int32"),
    "lengths of the host": (lambda c: c.update(cu_seq_q=c["cu_seq_q"].cpu()), "cu_seqlens_q must be on CUDA"),
    "counts of the host": (lambda c: c.update(seqused_k=c["seqused_k"].cpu()), "seqused_k must be on CUDA"),
    "too few counts": (lambda c: c.update(seqused_k=c["seqused_k"][:1]), "seqused_k must have shape"),
    "turned keys": (_turned, "contiguous last dimension"),
    "grouped heads unsaid": (lambda c: c.update(enable_gqa=False), "enable_gqa=True"),
    "heads that do not divide": (lambda c: c.update(query=c["query"][:, :7].contiguous()), "multiple of kv"),
    "pages": (lambda c: c.update(block_table=_ints(0, 1).view(2, 1), key=c["key"].view(8, 2, GROUPS, WIDTH),
                                 value=c["value"].view(8, 2, GROUPS, WIDTH)), "block_table"),
    "longer than said": (lambda c: c.update(max_k=5), "longer than"),
    "more queries than said": (lambda c: c.update(max_q=1), "longer than"),
    "keys beyond the memory": (lambda c: c.update(cu_seq_k=_ints(0, 12, 24)), "illegal memory access"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(card: Any, name: str) -> None:
    change, message = REFUSED[name]
    case = _case((2, 3), (10, 6), (7, 6), torch.float16)
    varlen_attn(**case, window_size=(-1, 0))
    change(case)
    with pytest.raises((RuntimeError, ValueError), match=message):
        varlen_attn(**case, window_size=(-1, 0))


def test_older_cards_have_no_flash_attention(card: Any, cards: Cards) -> None:
    cards("t4")
    with pytest.raises(RuntimeError, match="only supports Ampere GPUs or newer"):
        varlen_attn(**_case((2, 3), (10, 6), (7, 6), torch.float16))


def test_another_flash_attention_is_not_there(card: Any, cards: Cards) -> None:
    """Block tables want one that is installed apart, and activated."""
    cards("h200")
    with pytest.raises(ModuleNotFoundError, match="flash_attn_interface"):
        torch.nn.attention.activate_flash_attention_impl("FA3")
