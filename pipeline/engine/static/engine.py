"""The engine: a queue of requests, worked off batch by batch on one model under its plan, with a way out of
every failure.

Out of memory: the batch is halved, and the limit remembered for batches of that length; a request that does
not fit alone goes down a ladder: smaller passes, the cache offloaded, on disk, and where the plan allows
answers to change for it quantized; then it comes back as ``out_of_memory``. Requests as long start on the
rung that held, and beside a card those that are longer than all that the plan has for keys and values there
on one that keeps them elsewhere. Any other exception: the rows of the batch are tried alone, and the one that
raises again comes back as ``model_error``. Nothing is lost and nothing comes back empty.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from pipeline.engine.backoff import Ladder, RowLimits, Rung
from pipeline.engine.batching import batch_columns, next_batch, row_tokens
from pipeline.engine.device_failure import is_device_lost
from pipeline.engine.interface import Listener
from pipeline.engine.kv.cache import make_cache
from pipeline.engine.model.forward import Forward
from pipeline.engine.out_of_memory import (
    free_memory,
    give_back_pieces,
    is_disk_full,
    without_frames,
)
from pipeline.engine.static.generate import NON_FINITE, PassLimits, Reply, generate
from pipeline.engine.static.score import RowScores, score
from pipeline.engine.static.staged_prefill import REUSABLE, StagedPrefill
from pipeline.errors import OutOfMemory
from pipeline.records import Decode, Generation, KvPlacement, Plan, Request, Score

# Where keys and values go when even one document does not fit otherwise; to a placement that changes answers
# only if that is allowed.
_FURTHER: Mapping[str, tuple[KvPlacement, ...]] = {
    "device": ("offloaded", "disk"),
    "quantized": ("offloaded", "disk"),
    "offloaded": ("disk",),
}
_WHERE: Mapping[KvPlacement, str] = {"offloaded": "offloaded", "disk": "on disk", "quantized": "quantized"}
_ON_THE_CARD: tuple[KvPlacement, ...] = ("device", "quantized")
_AS_PLANNED = "as planned"
_SMALLEST_CHUNK_TOKENS = 16
_Error = tuple[str, str]


class StaticEngine:
    """Implements ``pipeline.engine.interface.Engine`` over a loaded causal language model. One thread; the
    model is never moved. Keys and values that do not fit in memory lie in ``kv_folder`` while they are used
    (None: where the system keeps temporary files).
    """

    def __init__(
        self,
        model: torch.nn.Module | Forward,
        plan: Plan,
        *,
        end_ids: Sequence[int],
        pad_id: int,
        kv_folder: Path | None = None,
    ) -> None:
        self._forward = model if isinstance(model, Forward) else Forward(model)
        self._plan = plan
        self._end_ids = frozenset(end_ids)
        self._settings = PassLimits(
            plan.prefill_chunk_tokens,
            plan.max_batch_rows,
            plan.batch_tokens,
            plan.placement,
            pad_id,
            kv_folder,
        )
        self._queue: dict[int, Request] = {}
        self._alone: deque[Request] = deque()
        self._refused: list[Generation] = []
        self._limits = RowLimits()
        may_quantize = (
            plan.lossy_last_resort and plan.placement != "quantized" and is_quantizable(self._forward)
        )
        self._ladder = Ladder(list(_ever_smaller(self._settings, may_quantize)))
        if self._forward.device.type == "cuda" and plan.placement in _ON_THE_CARD:
            self._start_lower_beyond(plan.batch_tokens)
        self.stages: StagedPrefill | None = None
        """How documents come from the store and go there; None: they are always read."""
        self.listener: Listener | None = None

    def _start_lower_beyond(self, tokens: int) -> None:
        """Rows of more than so many ``tokens`` do not have their keys and values on the card: the plan has
        given the rest of it away.
        """
        for rung in self._ladder.rungs:
            if rung.way.placement == self._settings.placement:
                self._ladder.failed(rung, tokens + 1)

    def admit(self, requests: Sequence[Request]) -> None:
        """Queue ``requests``; those that cannot be asked as they are come back as errors with the next
        step.
        """
        for request in requests:
            error = self._refusal(request)
            if error is None:
                self._queue[request.request_id] = request
            else:
                self._refused.append(_failed(request, error))

    def step(self) -> Sequence[Generation]:
        """Run the next batch to its end. May return nothing, when the batch failed and will be tried in
        smaller pieces.
        """
        if self._refused:
            refused, self._refused = self._refused, []
            return refused
        if self._alone:
            return self._run_alone(self._alone.popleft())
        batch = next_batch(
            self._queue.values(),
            self._plan,
            row_limit=self._limits.rows,
            equal_lengths=self._forward.equal_lengths,
        )
        for request in batch:
            del self._queue[request.request_id]
        if len(batch) == 1:
            return self._run_alone(batch[0])
        return self._run_together(batch) if batch else ()

    def release(self, request_ids: Collection[int]) -> None:
        """Forget queued requests; unknown ids are fine."""
        gone = set(request_ids)
        for request_id in gone:
            self._queue.pop(request_id, None)
        self._alone = deque(request for request in self._alone if request.request_id not in gone)
        self._refused = [generation for generation in self._refused if generation.request_id not in gone]

    @property
    def idle(self) -> bool:
        """True when nothing is queued."""
        return not (self._queue or self._alone or self._refused)

    def _run_together(self, batch: Sequence[Request]) -> Sequence[Generation]:
        outcome = self._attempt(batch, self._settings)
        if isinstance(outcome, OutOfMemory) or is_disk_full(outcome):  # fewer rows need less disk, too
            free_memory()
            self._limits.failed(batch_columns(batch), len(batch))
            self._queue.update((request.request_id, request) for request in batch)
            return ()
        if isinstance(outcome, Exception):
            self._alone.extend(batch)
            return ()
        # Numbers that broke in company may hold alone: half precision at the edge of its range.
        again = {generation.request_id for generation in outcome if generation.error == NON_FINITE}
        self._alone.extend(request for request in batch if request.request_id in again)
        return [generation for generation in outcome if generation.request_id not in again]

    def _run_alone(self, request: Request) -> Sequence[Generation]:
        error: Exception | None = None
        tokens = row_tokens(request)
        for rung in self._ladder.below(tokens):
            outcome = self._attempt([request], rung.way)
            if not isinstance(outcome, Exception):
                return (
                    outcome if rung.name == _AS_PLANNED else [_noted(reply, rung.name) for reply in outcome]
                )
            error = outcome
            if is_disk_full(error) and rung.way.placement == self._settings.placement:
                # where all caches are to be: every other document would fail, too
                return [_failed(request, ("disk_full", f"The disk for KV caches is full: {error}"))]
            if not (is_disk_full(error) or isinstance(error, OutOfMemory)):
                told = f"The model raised {type(error).__name__} on this prompt: {error}"
                return [_failed(request, ("model_error", told))]
            self._ladder.failed(rung, tokens)
            free_memory()
        message = (
            f"The prompt of {len(request.ids)} tokens ran out of memory alone, with the smallest passes "
            f"and with its cache on disk "
            f"({error}); lower model.context_tokens, raise model.max_memory, or free space on the disk of "
            f"the run directory."
        )
        return [_failed(request, ("out_of_memory", message))]

    def _attempt(self, batch: Sequence[Request], settings: PassLimits) -> Sequence[Generation] | Exception:
        """Run ``batch``; an exception of the model is returned without the frames that hold its tensors."""
        if self.listener is not None:
            self.listener.started([request.request_id for request in batch])
            self._forward.after_pass = self.listener.pulse
        give_back_pieces()
        started = time.perf_counter()
        try:
            replies = self._replies(batch, settings)
        except Exception as error:
            if is_device_lost(error):
                raise
            failure = without_frames(error)
        else:
            seconds = (time.perf_counter() - started) / len(batch)
            return [
                replace(
                    generation_of(request, reply, settings.placement, len(batch), seconds),
                    computed_tokens=len(request.ids) - self._found_tokens(request),
                )
                for request, reply in zip(batch, replies, strict=True)
            ]
        return failure

    def _found_tokens(self, request: Request) -> int:
        return 0 if self.stages is None else self.stages.found_tokens(request)

    def _replies(
        self, batch: Sequence[Request], settings: PassLimits
    ) -> Sequence[Reply | RowScores | _Error]:
        if self.stages is not None and settings.placement in REUSABLE:
            staged = self.stages.replies(batch, self._end_ids, settings)
            if staged is not None:
                return staged
        prompts = [request.ids for request in batch]
        decodes = [request.ask for request in batch if isinstance(request.ask, Decode)]
        scores = [request.ask for request in batch if isinstance(request.ask, Score)]
        if decodes:
            return generate(self._forward, prompts, decodes, self._end_ids, settings)
        return score(self._forward, prompts, scores, settings)

    def refuses(self, request: Request) -> bool:
        """Whether ``request`` cannot be asked as it is; admitting it gives the reason back."""
        return self._refusal(request) is not None

    def _refusal(self, request: Request) -> _Error | None:
        """Why ``request`` cannot be asked, or None."""
        if row_tokens(request) > self._plan.context_tokens:
            return "too_long", (
                f"The prompt of {len(request.ids)} tokens and {row_tokens(request) - len(request.ids)} "
                f"new ones exceed the context of "
                f"{self._plan.context_tokens} tokens; split the document or lower max_output_tokens."
            )
        ask = request.ask
        parts = (request.ids,) if isinstance(ask, Decode) else (request.ids, *ask.continuations)
        asks_something = ask.max_new_tokens > 0 if isinstance(ask, Decode) else len(ask.continuations) > 0
        if not (asks_something and all(parts)):
            return "empty_request", "The prompt, or what is asked of it, has no tokens."
        limit = self._forward.vocabulary_tokens
        wrong = next((token for part in parts for token in part if not 0 <= token < limit), None)
        if wrong is not None:
            return (
                "unknown_token",
                (
                    f"Token id {wrong} is outside the model's vocabulary of {limit}: the tokenizer is not "
                    f"this model's."
                ),
            )
        return None


def is_quantizable(forward: Forward) -> bool:
    """Whether all layers of the model can keep quantized keys and values."""
    try:
        make_cache(forward.config, "quantized", forward.device)
    except (ValueError, KeyError, AttributeError):  # quantized layers are for full attention only
        return False
    return True


def _ever_smaller(planned: PassLimits, may_quantize: bool) -> Iterator[Rung[PassLimits]]:
    """Ways to run one request, each with less memory than the one before."""
    small = replace(
        planned,
        prefill_chunk_tokens=max(_SMALLEST_CHUNK_TOKENS, planned.prefill_chunk_tokens // 4),
        score_rows=1,
    )
    yield Rung(_AS_PLANNED, planned)
    yield Rung("read in smaller passes", small)
    further = _FURTHER.get(planned.placement, ())
    for placement in (*further, "quantized") if may_quantize else further:
        words = f"read in smaller passes, its KV cache {_WHERE[placement]}"
        yield Rung(words, replace(small, placement=placement))


def generation_of(
    request: Request, reply: Reply | RowScores | _Error, placement: str, rows: int, seconds: float
) -> Generation:
    """What is given back for ``request``: its text, its scores, or why there is neither.

    ``seconds`` is the row's share of the batch's time.
    """
    common = Generation(
        request.request_id,
        prompt_tokens=len(request.ids),
        seconds=seconds,
        batch_rows=rows,
        placement=placement,
    )
    if isinstance(reply, Reply):
        return replace(
            common, token_ids=tuple(reply.token_ids), finish_reason=reply.finish_reason, error=reply.error
        )
    if isinstance(reply, RowScores):
        return replace(common, scores=tuple(float(value) for value in reply.scores), features=reply.features)
    return replace(common, finish_reason="error", error=reply)


def _failed(request: Request, error: _Error) -> Generation:
    return Generation(request.request_id, finish_reason="error", prompt_tokens=len(request.ids), error=error)


def _noted(generation: Generation, rung: str) -> Generation:
    return replace(generation, notes=(f"ran short of memory: {rung}",))
