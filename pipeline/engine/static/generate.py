"""Prompts to text: prefill of row groups in bounded chunks, and our own decode loop over the joined batch.

``prefill`` turns prompts into ``Rows`` (cache, mask, next positions, next logits); ``decode`` carries rows on
to their ends. They meet only in ``Rows``, so that rows of several prefills can be joined, and later be
admitted while others decode. Greedy choice is the argmax in float32. A row ends by an end token, its token
limit, a loop in its output, or logits that are not numbers; when a quarter of a batch has ended, the cache is
compacted to the rows that go on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from pipeline.engine.batching import chunk_columns, prefill_groups
from pipeline.engine.kv.cache import AnyCache, can_join, join_rows, keep_rows, make_cache, select_rows
from pipeline.engine.model.forward import Forward, left_padded
from pipeline.engine.out_of_memory import give_back_pieces
from pipeline.engine.sampling.choice import choose
from pipeline.engine.sampling.repetition import RepetitionDetector
from pipeline.engine.sampling.sampler import TokenSampler, sampler_for
from pipeline.engine.transfers import Arrival, sent
from pipeline.records import Decode, FinishReason, KvPlacement

NON_FINITE = (
    "non_finite_logits",
    (
        "The model gave logits that are not numbers for this prompt; try model.dtype: float32 or another "
        "quantization."
    ),
)

# While rows are decoded, whose passes are short and not to wait for the card.
_MOST_KEPT_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class PassLimits:
    """How much at once: tokens of one prefill pass, rows of one scoring pass, and where keys and values
    live; those on disk in ``kv_folder``, None: where the system keeps temporary files.
    """

    prefill_chunk_tokens: int
    score_rows: int
    batch_tokens: int
    placement: KvPlacement
    pad_id: int
    kv_folder: Path | None = None


@dataclass(slots=True)
class Rows:
    """Prompts that have been read, ready to be continued.

    ``mask`` (rows, cached columns) is 0 at padding, ``positions`` (rows,) the position of the next token,
    ``logits`` (rows, vocabulary) those of the next token in float32.
    """

    cache: AnyCache
    mask: torch.Tensor
    positions: torch.Tensor
    logits: torch.Tensor

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def columns(self) -> int:
        """Cached columns, padding included."""
        return int(self.mask.shape[1])


@dataclass(slots=True)
class Reply:
    """How one row ended; ``token_ids`` without the end token and without the copies of a loop."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "length"
    error: tuple[str, str] | None = None


def prefill(
    forward: Forward, prompts: Sequence[Sequence[int]], settings: PassLimits, reserve_tokens: int = 0
) -> Rows:
    """Read ``prompts`` together, padded on the left, in passes of about ``settings.prefill_chunk_tokens``
    tokens.

    Only the last column's logits are computed. ``reserve_tokens``: columns to keep free behind the prompts.
    """
    ids, mask, positions = left_padded(prompts, settings.pad_id, forward.device)
    columns = ids.shape[1]
    cache = make_cache(
        forward.config, settings.placement, forward.device, columns + reserve_tokens, settings.kv_folder
    )
    width = chunk_columns(len(prompts), settings.prefill_chunk_tokens)
    for start in range(0, columns, width):
        end = min(start + width, columns)
        give_back_pieces()
        logits = forward(ids[:, start:end], mask[:, :end], positions[:, start:end], cache)
    return Rows(cache, mask, positions[:, -1] + 1, logits[:, -1].float())


def prefill_in_groups(
    forward: Forward, prompts: Sequence[Sequence[int]], settings: PassLimits, reserve_tokens: int = 0
) -> Rows:
    """Read ``prompts`` in groups of near lengths and join them into one batch."""
    groups = prefill_groups([len(prompt) for prompt in prompts], settings.prefill_chunk_tokens)
    if len(groups) == 1 or not can_join(make_cache(forward.config, settings.placement, forward.device)):
        return prefill(forward, prompts, settings, reserve_tokens)
    return joined(
        [prefill(forward, [prompts[row] for row in group], settings) for group in groups], reserve_tokens
    )


def joined(parts: Sequence[Rows], reserve_tokens: int = 0) -> Rows:
    """The rows of all ``parts`` in one; their caches are emptied on the way."""
    columns = max(part.columns for part in parts)
    masks = [torch.nn.functional.pad(part.mask, (columns - part.columns, 0)) for part in parts]
    cache = join_rows([part.cache for part in parts], columns + reserve_tokens)
    positions = torch.cat([part.positions for part in parts])
    return Rows(cache, torch.cat(masks), positions, torch.cat([part.logits for part in parts]))


def selected(rows: Rows, indices: Sequence[int], reserve_columns: int = 0) -> Rows:
    """``indices`` of ``rows`` as rows of their own (copies), repeats allowed."""
    index = torch.tensor(list(indices), dtype=torch.long, device=rows.mask.device)
    cache = select_rows(rows.cache, indices, reserve_columns)
    return Rows(cache, rows.mask[index], rows.positions[index], rows.logits[index.to(rows.logits.device)])


def kept(rows: Rows, indices: Sequence[int]) -> Rows:
    """``indices`` of ``rows``, whose cache is used up: a layer at a time, as all of it may fill its room."""
    keep_rows(rows.cache, indices)
    index = torch.tensor(list(indices), dtype=torch.long, device=rows.mask.device)
    logits = rows.logits[index.to(rows.logits.device)]
    return Rows(rows.cache, rows.mask[index], rows.positions[index], logits)


def generate(
    forward: Forward,
    prompts: Sequence[Sequence[int]],
    asks: Sequence[Decode],
    end_ids: Collection[int],
    settings: PassLimits,
) -> list[Reply]:
    """Replies to ``prompts`` (one ask each), in their order."""
    with torch.inference_mode():
        rows = prefill_in_groups(forward, prompts, settings, max(ask.max_new_tokens for ask in asks))
        return decode(forward, rows, asks, end_ids, settings.pad_id)


def decode(
    forward: Forward, rows: Rows, asks: Sequence[Decode], end_ids: Collection[int], pad_id: int
) -> list[Reply]:
    """Carry ``rows`` on until each has ended. ``rows`` is used up."""
    outputs = [Output(ask, end_ids) for ask in asks]
    live = list(range(len(rows)))  # live[i]: which output row i of the cache belongs to
    while True:
        tokens = _next_tokens(rows.logits, [outputs[owner] for owner in live])
        going = [row for row, owner in enumerate(live) if not outputs[owner].ended]
        if not going:
            return [output.reply for output in outputs]
        if 4 * (len(live) - len(going)) >= len(live):
            rows = kept(rows, going)
            live, tokens = [live[row] for row in going], [tokens[row] for row in going]
        give_back_pieces(_MOST_KEPT_BYTES)
        rows = _advance(forward, rows, [pad_id if token is None else token for token in tokens])


def _advance(forward: Forward, rows: Rows, tokens: Sequence[int]) -> Rows:
    """One more column: ``tokens`` (one a row) go in, the next logits come out."""
    ids = sent(tokens, torch.long, rows.mask.device)[:, None]
    mask = torch.cat([rows.mask, rows.mask.new_ones(len(rows), 1)], dim=1)
    logits = forward(ids, mask, rows.positions[:, None], rows.cache)
    return replace(rows, mask=mask, positions=rows.positions + 1, logits=logits[:, -1].float())


def _next_tokens(logits: torch.Tensor, outputs: Sequence[Output]) -> list[int | None]:
    """Let every output take its next token from ``logits`` (rows, vocabulary); None for rows that have
    ended.
    """
    samplers = [
        (row, output.sampler)
        for row, output in enumerate(outputs)
        if output.sampler is not None and not output.ended
    ]
    best, chosen = choose(logits, samplers)
    words = Arrival(torch.cat([best.view(torch.int32), chosen.int()])).wait()  # one transfer
    finite = words[: len(outputs)].view(torch.float32).isfinite().tolist()
    choices = words[len(outputs) :].tolist()
    tokens: list[int | None] = []
    for row, output in enumerate(outputs):
        if not output.ended and not finite[row]:
            output.fail(NON_FINITE)
        elif not output.ended:
            output.push(choices[row])
        tokens.append(None if output.ended else output.reply.token_ids[-1])
    return tokens


class Output:
    """The growing text of one row, and whether it has ended."""

    def __init__(self, ask: Decode, end_ids: Collection[int]) -> None:
        self.reply = Reply()
        self.ended = False
        self.sampler: TokenSampler | None = sampler_for(ask.sampling)
        self._limit = ask.max_new_tokens
        self._end_ids = end_ids
        self._loops = RepetitionDetector() if ask.loops_end else None

    @property
    def room(self) -> int:
        """Tokens that it can still take."""
        return self._limit - len(self.reply.token_ids)

    def push(self, token: int) -> None:
        """Take ``token``, or end with it."""
        if token in self._end_ids:
            self._end("stop")
            return
        self.reply.token_ids.append(token)
        kept = self._loops.push(token) if self._loops else None
        if kept is not None:
            del self.reply.token_ids[kept:]
            self._end("repetition")
        elif len(self.reply.token_ids) >= self._limit:
            self._end("length")

    def fail(self, error: tuple[str, str]) -> None:
        """End without an answer."""
        self.reply = Reply(finish_reason="error", error=error)
        self.ended = True

    def _end(self, reason: FinishReason) -> None:
        self.reply.finish_reason = reason
        self.ended = True
