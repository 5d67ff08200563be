"""Attention over one stretch of keys, with its log-sum-exp, and how stretches are joined.

Softmax over a union of stretches is the mean of their softmaxes weighted by exp(lse) (Dao et al.,
FlashAttention, 2022, section 3.1; Juravsky et al., Hydragen, 2024, for shared prefixes).

Shapes: n rows, H query heads, G KV heads, q queries, k keys, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from pipeline.engine.packed.label_trie import LabelTrie

KeysValues = tuple[torch.Tensor, torch.Tensor]
_PLAIN_QUERIES = 256


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    *,
    causal: bool = False,
    mask: torch.Tensor | None = None,
) -> KeysValues:
    """Output (n, H, q, D) and log-sum-exp (n, H, q) of ``query`` (n, H, q, D) over ``key`` and ``value``
    (n, G, k, D). H may be a multiple of G; ``mask`` is added to the scores.
    """
    if query.device.type == "cpu" and value.shape[-1] == key.shape[-1]:
        # the public one keeps the log-sum-exp
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
        result: KeysValues = kernel(query, key, value, 0.0, causal, attn_mask=mask, scale=scaling)
        return result
    return attend_plainly(query, key, value, scaling, causal=causal, mask=mask)


def join(output: torch.Tensor, lse: torch.Tensor, more: KeysValues, *, last: bool) -> None:
    """Join to ``output`` (n, H, D) and ``lse`` (n, H), in place, what the same tokens saw of ``more`` keys;
    after the ``last`` the log-sum-exp is of no use and stays as it was.
    """
    found, found_lse = more
    share = torch.empty(lse.shape, dtype=output.dtype, device=lse.device)  # rounded as it is written
    torch.sigmoid(found_lse - lse, out=share)
    output.lerp_(found, share[..., None])
    if not last:
        torch.logaddexp(lse, found_lse, out=lse)


def attend_plainly(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    *,
    causal: bool,
    mask: torch.Tensor | None,
) -> KeysValues:
    """The formula itself, in float32, a stretch of queries at a time, where there is no kernel that returns
    the log-sum-exp.
    """
    outputs, lses = [], []
    for begin in range(0, query.shape[2], _PLAIN_QUERIES):
        some = query[:, :, begin : begin + _PLAIN_QUERIES]
        added = mask if mask is None or mask.shape[2] == 1 else mask[:, :, begin : begin + _PLAIN_QUERIES]
        output, lse = _attend_some(some, key, value, scaling, first=begin if causal else None, mask=added)
        outputs.append(output)
        lses.append(lse)
    return torch.cat(outputs, dim=2), torch.cat(lses, dim=2)


def _attend_some(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    *,
    first: int | None,
    mask: torch.Tensor | None,
) -> KeysValues:
    """``first`` is the position of the first query among the keys where each sees only keys up to its own
    place, else None.
    """
    rows, heads, queries, _ = query.shape
    groups, keys = key.shape[1], key.shape[2]
    stacked = query.reshape(rows, groups, heads // groups, queries, -1).float()
    scores = stacked @ key[:, :, None].float().transpose(-1, -2) * scaling
    if first is not None:
        places = torch.arange(keys, device=query.device)
        scores = scores.masked_fill(
            places[None, :] > first + torch.arange(queries, device=query.device)[:, None], float("-inf")
        )
    if mask is not None:
        scores = scores + mask[:, :, None]
    lse = scores.logsumexp(-1)
    output = (scores - lse[..., None]).exp() @ value[:, :, None].float()
    return output.reshape(rows, heads, queries, -1).to(query.dtype), lse.reshape(rows, heads, queries)


@lru_cache(maxsize=64)
def ancestry(trie: LabelTrie, nodes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of places among ``nodes``: each with itself and with those above it, which are all there."""
    place = {node: offset for offset, node in enumerate(nodes)}
    pairs = [(place[node], place[above]) for node in nodes for above in trie.ancestors(node)]
    rows, columns = torch.tensor(pairs, dtype=torch.long).T
    return rows, columns
