"""Prompts to log-probabilities: how likely the model finds each given continuation, over its whole token
sequence.

A prompt is read once. The first token of every continuation is scored by the prompt's own last logits; the
others by running the continuations, padded on the right, on an expanded copy of the prompt's cache, in groups
within ``batch_tokens``. The prompt's cache itself is never appended to. Natural logarithms, log-softmax in
float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pipeline.engine.batching import prefill_groups
from pipeline.engine.model.forward import Forward, right_padded
from pipeline.engine.sampling.hidden_state import packed, watched
from pipeline.engine.static.generate import NON_FINITE, PassLimits, Rows, prefill, selected
from pipeline.engine.transfers import sent
from pipeline.records import Score

Scores = tuple[float, ...]


class RowScores(NamedTuple):
    """A prompt's scores, and its features where they were asked for."""

    scores: Scores
    features: bytes = b""


_Tail = tuple[int, int, tuple[int, ...]]  # row of its prompt, index among that prompt's continuations, tokens


def score(
    forward: Forward, prompts: Sequence[Sequence[int]], asks: Sequence[Score], settings: PassLimits
) -> list[RowScores | tuple[str, str]]:
    """For each prompt the log-probabilities of its continuations in their order, or (kind, message) where
    logits are not numbers.
    """
    results: list[RowScores | tuple[str, str]] = []
    with torch.inference_mode():
        for group in prefill_groups([len(prompt) for prompt in prompts], settings.prefill_chunk_tokens):
            with watched(forward.model, wanted=any(asks[row].features for row in group)) as watch:
                rows = prefill(forward, [prompts[row] for row in group], settings)
            seen = watch.seen if watch.seen is not None else [None] * len(group)
            features = [
                packed(state[-1]) if state is not None and asks[row].features else b""
                for row, state in zip(group, seen, strict=True)
            ]
            found = score_rows(forward, rows, [asks[row] for row in group], settings)
            results += [
                RowScores(scores, state) if all(map(math.isfinite, scores)) else NON_FINITE
                for scores, state in zip(found, features, strict=True)
            ]
    return results


def score_rows(forward: Forward, rows: Rows, asks: Sequence[Score], settings: PassLimits) -> list[Scores]:
    """Log-probabilities of each row's continuations. ``rows`` stays as it is and can be asked again."""
    totals = _first_tokens(rows.logits, asks)
    tails = [
        (row, index, continuation)
        for row, ask in enumerate(asks)
        for index, continuation in enumerate(ask.continuations)
        if len(continuation) > 1
    ]
    for group in _tail_groups(tails, rows.columns, settings):
        for (row, index, _), value in zip(group, _tail_scores(forward, rows, group, settings), strict=True):
            totals[row][index] += value
    return [tuple(row) for row in totals]


def _first_tokens(logits: torch.Tensor, asks: Sequence[Score]) -> list[list[float]]:
    found = []
    for row_logits, ask in zip(logits, asks, strict=True):
        log_probabilities = torch.log_softmax(row_logits, dim=-1)
        tokens = [continuation[0] for continuation in ask.continuations]
        found.append(log_probabilities[sent(tokens, torch.long, logits.device)])
    values = iter(torch.cat(found).tolist())  # read once
    return [[next(values) for _ in ask.continuations] for ask in asks]


def _tail_groups(tails: Sequence[_Tail], columns: int, settings: PassLimits) -> list[list[_Tail]]:
    """Longest continuations first, so that a group pads little; rows x columns within ``batch_tokens``, or
    one row alone.
    """
    groups: list[list[_Tail]] = []
    for tail in sorted(tails, key=lambda tail: (-len(tail[2]), tail[0], tail[1])):
        group = groups[-1] if groups else []
        longest = len(group[0][2]) if group else len(tail[2])
        if (
            group
            and len(group) < settings.score_rows
            and (len(group) + 1) * (columns + longest) <= settings.batch_tokens
        ):
            group.append(tail)
        else:
            groups.append([tail])
    return groups


def _tail_scores(forward: Forward, rows: Rows, group: Sequence[_Tail], settings: PassLimits) -> list[float]:
    """For each of ``group``, the log-probability of its tokens after the first."""
    longest = len(group[0][2]) - 1
    copies = selected(rows, [row for row, _, _ in group], rows.columns + longest)
    ids, fed = right_padded([tokens[:-1] for _, _, tokens in group], settings.pad_id, rows.mask.device)
    targets, _ = right_padded([tokens[1:] for _, _, tokens in group], 0, rows.mask.device)
    positions = copies.positions[:, None] + torch.arange(longest, device=ids.device)[None, :]
    logits = forward(ids, torch.cat([copies.mask, fed], dim=1), positions, copies.cache, keep=longest)
    values = []
    for row_logits, row_targets, (_, _, tokens) in zip(logits, targets.to(logits.device), group, strict=True):
        # one row at a time: in float32 the vocabulary makes this the largest tensor of all
        count = len(tokens) - 1
        chosen = torch.log_softmax(row_logits[:count].float(), dim=-1).gather(1, row_targets[:count, None])
        values.append(chosen.sum())
    return list(torch.stack(values).tolist())  # read once
