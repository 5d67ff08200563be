"""Requests to batches under a plan: pure functions on lengths, no torch.

A batch holds one kind of ask, longest prompts first, within ``max_batch_rows`` and ``batch_tokens``. Inside a
batch, prompts are prefilled in small groups of near lengths (``prefill_groups``) and decoded together: on the
measured machine prefill is fastest in small groups and decode in large ones, so padding is paid once in KV
memory, hardly in compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pipeline.records import Decode, Plan, Request

# A row may be padded to at most this many times its own prompt; its padding costs KV memory and attention,
# not matrix products.
PADDED_TO_AT_MOST = 2
# ... except among prompts this short, where an additional row always pays.
SHORT_TOKENS = 64


def new_tokens(request: Request) -> int:
    """The most tokens that can follow the prompt in the cache."""
    ask = request.ask
    if isinstance(ask, Decode):
        return ask.max_new_tokens
    return max((len(continuation) for continuation in ask.continuations), default=0)


def row_tokens(request: Request) -> int:
    """Prompt and new tokens of one request."""
    return len(request.ids) + new_tokens(request)


def batch_columns(batch: Sequence[Request]) -> int:
    """Columns of the padded batch: the longest prompt and the most new tokens, whichever rows they come
    from.
    """
    return max(len(request.ids) for request in batch) + max(new_tokens(request) for request in batch)


def next_batch(
    queue: Iterable[Request],
    plan: Plan,
    *,
    row_limit: Callable[[int], int | None] | None = None,
    equal_lengths: bool = False,
) -> list[Request]:
    """The next requests to run together: the longest prompt in the queue and as many near to it as fit.
    Leaves ``queue`` alone.

    Bounds: at most ``plan.max_batch_rows`` rows and ``row_limit(columns)``, rows x columns at most
    ``plan.batch_tokens``, one kind of ask, and no prompt padded to more than twice its length (short ones: by
    more than 64 tokens). A request that exceeds ``batch_tokens`` on its own goes alone. With
    ``equal_lengths`` all prompts have the same length.
    """
    ordered = sorted(queue, key=lambda request: (-len(request.ids), -new_tokens(request), request.request_id))
    batch: list[Request] = ordered[:1]
    for request in ordered[1:]:
        if type(request.ask) is not type(batch[0].ask):
            continue
        if not _near(request, batch[0], equal_lengths):
            break  # all further ones are shorter still
        if _fits([*batch, request], plan, row_limit):
            batch.append(request)
        elif len(batch) >= plan.max_batch_rows:
            break
    return batch


def _near(request: Request, longest: Request, equal_lengths: bool) -> bool:
    tokens, longest_tokens = len(request.ids), len(longest.ids)
    if equal_lengths:
        return tokens == longest_tokens
    return longest_tokens <= PADDED_TO_AT_MOST * tokens or longest_tokens - tokens <= SHORT_TOKENS


def _fits(batch: Sequence[Request], plan: Plan, row_limit: Callable[[int], int | None] | None) -> bool:
    columns = batch_columns(batch)
    limit = row_limit(columns) if row_limit else None
    return (
        len(batch) <= min(plan.max_batch_rows, limit or plan.max_batch_rows)
        and len(batch) * columns <= plan.batch_tokens
    )


def prefill_groups(lengths: Sequence[int], chunk_tokens: int) -> list[range]:
    """Consecutive rows to prefill together: rows x longest prompt at most ``chunk_tokens``, or one row alone.

    ``lengths`` are prompt lengths; in descending order (as ``next_batch`` gives them) neighbours pad each
    other little.
    """
    groups: list[range] = []
    start, longest = 0, 0
    for row, tokens in enumerate(lengths):
        longest = max(longest, tokens)
        if row > start and (row - start + 1) * longest > chunk_tokens:
            groups.append(range(start, row))
            start, longest = row, tokens
    return [*groups, range(start, len(lengths))] if lengths else []


def chunk_columns(rows: int, chunk_tokens: int) -> int:
    """Columns of one prefill pass over ``rows`` rows, so that a pass computes about ``chunk_tokens`` tokens
    at most.
    """
    return max(1, chunk_tokens // rows)
