"""Prompts read in stages by the static engine: what is stored of the document, the rest of it, then the
question. Any family's layers.

Each such prompt is read alone and then joined with its batch, so that a batch mixes rows from the disk with
rows just read.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.engine.kv.cache import AnyCache, can_join, make_cache
from pipeline.engine.kv.serialize import restored, row_tensors, unknown_layers
from pipeline.engine.model.forward import Forward
from pipeline.engine.reuse.device_time import Span
from pipeline.engine.reuse.prefix_store import PrefillCheckpoints, PrefixStore
from pipeline.engine.sampling.hidden_state import packed, watched
from pipeline.engine.static.generate import (
    NON_FINITE,
    PassLimits,
    Reply,
    Rows,
    decode,
    joined,
    prefill_in_groups,
)
from pipeline.engine.static.score import RowScores, score, score_rows
from pipeline.engine.trial import Agreement, compared, reason_against, trial_tokens
from pipeline.records import Decode, KvPlacement, Request, Score, document_of

_Tensors = dict[str, torch.Tensor]
_Answer = Reply | RowScores | tuple[str, str]
_TRIAL_TOKENS, _TRIAL_CUT = 40, 29
# Placements whose layers can be taken apart into tensors.
REUSABLE: tuple[KvPlacement, ...] = ("device", "offloaded")


@dataclass(frozen=True)
class _Cached:
    """A beginning of a prompt, as named tensors; ``resumed``: from a checkpoint."""

    tokens: int
    ranges: _Tensors
    states: _Tensors
    resumed: bool = False


class StagedPrefill:
    """See the module. Keeps the last documents about which this run has further questions in memory, up to
    ``recent_tokens``.
    """

    def __init__(self, forward: Forward, reuse: PrefixStore, recent_tokens: int) -> None:
        self._forward = forward
        self._reuse = reuse
        self._recent_tokens = recent_tokens
        self._recent: OrderedDict[tuple[int, ...], _Cached] = OrderedDict()
        self._unfinished: list[
            tuple[tuple[int, ...], bool]
        ] = []  # documents with checkpoints whose questions are being answered
        self._found_tokens: dict[int, int] = {}
        self._joins = can_join(make_cache(forward.config, "device", forward.device))

    def replies(
        self, batch: Sequence[Request], end_ids: Collection[int], settings: PassLimits
    ) -> Sequence[_Answer] | None:
        """Answers to ``batch`` in its order; None where nothing of it is stored or to be stored, and it may
        as well be read together.
        """
        with torch.inference_mode():
            alone, cached = self._found(batch)
            if not alone or (len(batch) > 1 and not self._joins):
                return None
            order = [*(place for place in range(len(batch)) if place not in alone), *alone]
            self._unfinished.clear()
            answers = self._answers([batch[place] for place in order], cached, end_ids, settings)
            for key, keep in self._unfinished:
                self._reuse.finish(key, keep=keep)
            return [answers[order.index(place)] for place in range(len(batch))]

    def found_tokens(self, request: Request) -> int:
        """Tokens of its prompt that an answered request has not computed; told once."""
        return self._found_tokens.pop(request.request_id, 0)

    def _found(self, batch: Sequence[Request]) -> tuple[list[int], deque[_Cached]]:
        """Places in ``batch`` of what is worth a stage of its own, and what is known of each; nothing else
        holds that.
        """
        alone: list[int] = []
        found: deque[_Cached] = deque()
        for place, request in enumerate(batch):
            cached = self._stored(request)
            if cached is not None:
                alone.append(place)
                found.append(cached)
                self._found_tokens[request.request_id] = cached.tokens
        return alone, found

    def _stored(self, request: Request) -> _Cached | None:
        """What is known of the document, possibly nothing but that it is to be kept; None where it is not
        worth a stage of its own.
        """
        if not request.document_end or not self._reuse.is_wanted(request.document_tokens):
            return None
        key = document_of(request)
        if key in self._recent:
            self._reuse.session.tally.shared += 1
            return self._recent[key]
        found = self._reuse.find(key)
        if found is not None:
            loaded, resumed = found
            return _Cached(loaded.tokens, dict(loaded.ranges), dict(loaded.states), resumed)
        wanted = request.awaited > 0 or self._keeps(request, key) or self._reuse.session.is_long(len(key))
        return _Cached(0, {}, {}) if wanted else None

    def _keeps(self, request: Request, key: Sequence[int]) -> bool:
        return self._reuse.keeps(len(key), 0, request.awaited)

    def _answers(
        self,
        requests: Sequence[Request],
        found: deque[_Cached],
        end_ids: Collection[int],
        settings: PassLimits,
    ) -> list[_Answer]:
        """``requests``: those to be read together, then one for each of ``found``, which is emptied: each is
        let go once it is a row, or the batch would be in memory twice.
        """
        together, alone = requests[: len(requests) - len(found)], requests[len(requests) - len(found) :]
        prompts = [request.ids for request in together]
        decodes = [request.ask for request in requests if isinstance(request.ask, Decode)]
        if decodes:
            room = max(ask.max_new_tokens for ask in decodes)
            parts = [prefill_in_groups(self._forward, prompts, settings)] if together else []
            parts += [self._read(request, found.popleft(), settings) for request in alone]
            return list(
                decode(
                    self._forward,
                    joined(parts, max(part.columns for part in parts) + room),
                    decodes,
                    end_ids,
                    settings.pad_id,
                )
            )
        asks = [request.ask for request in requests if isinstance(request.ask, Score)]
        answers: list[_Answer] = (
            list(score(self._forward, prompts, asks[: len(together)], settings)) if together else []
        )
        for request, ask in zip(alone, asks[len(together) :], strict=True):
            with watched(self._forward.model, wanted=ask.features) as watch:
                row = self._read(request, found.popleft(), settings)
            features = packed(watch.seen[0, -1]) if watch.seen is not None else b""
            scores = score_rows(self._forward, row, [ask], settings)[0]
            answers.append(RowScores(scores, features) if all(map(math.isfinite, scores)) else NON_FINITE)
        return answers

    def _read(self, request: Request, cached: _Cached, settings: PassLimits) -> Rows:
        """The whole prompt of one request as a row, from where ``cached`` ends."""
        key = document_of(request)
        cache = _cache_of(self._forward, cached, settings, len(request.ids))
        if cached.tokens < len(key):
            self._read_document(request, key, cached, cache, settings)
        elif cached.resumed:
            self._unfinished.append((key, self._keeps(request, key)))
        logits = _feed(
            self._forward, cache, request.ids, len(key), len(request.ids), settings.prefill_chunk_tokens
        )
        return _row(self._forward, cache, len(request.ids), logits)

    def _read_document(
        self, request: Request, key: tuple[int, ...], cached: _Cached, cache: AnyCache, settings: PassLimits
    ) -> None:
        session, chunk = self._reuse.session, settings.prefill_chunk_tokens
        keep, long = self._keeps(request, key), session.is_long(len(key))
        saving = (
            PrefillCheckpoints(self._reuse, key, cached.tokens if cached.resumed else 0)
            if long or cached.resumed
            else None
        )
        watch, done = session.stopwatch(self._forward.device), cached.tokens
        while done < len(key):
            end = min(len(key), (done // chunk + 1) * chunk)
            _feed(self._forward, cache, key, done, end, chunk)
            done = end
            if saving is not None and end < len(key) and saving.is_due():
                saving.save(end, watch.so_far(), lambda begin: row_tensors(cache, begin))
        took = watch.so_far()
        session.computed(len(key) - cached.tokens, took)
        self._put(
            request, key, cache, took.times(len(key) / (len(key) - cached.tokens)), keep=keep, saving=saving
        )

    def _put(
        self,
        request: Request,
        key: tuple[int, ...],
        cache: AnyCache,
        took: Span,
        *,
        keep: bool,
        saving: PrefillCheckpoints | None,
    ) -> None:
        if saving is not None and saving.used:
            if keep or isinstance(request.ask, Decode):  # scoring takes a moment beside the document
                saving.save(len(key), took, lambda begin: row_tensors(cache, begin))
            self._unfinished.append((key, keep))
            return
        if not (keep or request.awaited):
            return
        ranges, states = row_tensors(cache, 0)
        if keep:
            self._reuse.put("document", key, took, ranges, states)
        if request.awaited:
            self._recent[key] = _Cached(len(key), ranges, states)
            while sum(map(len, self._recent)) > self._recent_tokens:
                self._recent.popitem(last=False)


def _cache_of(forward: Forward, cached: _Cached, settings: PassLimits, columns: int) -> AnyCache:
    if not cached.tokens:
        return make_cache(forward.config, settings.placement, forward.device, columns)
    return restored(
        forward.config,
        settings.placement,
        forward.device,
        cached.tokens,
        [cached.ranges, cached.states],
        columns,
        forward.layer_devices,
    )


def _feed(
    forward: Forward, cache: AnyCache, ids: Sequence[int], begin: int, end: int, chunk_tokens: int
) -> torch.Tensor:
    """Read ``ids[begin:end]`` on top of the cache; the logits behind the last of them, (1, vocabulary)."""
    for start in range(begin, end, chunk_tokens):
        stop = min(start + chunk_tokens, end)
        tokens = torch.tensor([ids[start:stop]], dtype=torch.long, device=forward.device)
        positions = torch.arange(start, stop, device=forward.device)[None]
        logits = forward(
            tokens, torch.ones(1, stop, dtype=torch.long, device=forward.device), positions, cache
        )
    return logits[:, -1].float()


def _row(forward: Forward, cache: AnyCache, tokens: int, logits: torch.Tensor) -> Rows:
    mask = torch.ones(1, tokens, dtype=torch.long, device=forward.device)
    return Rows(cache, mask, torch.tensor([tokens], device=forward.device), logits)


def not_reusable(model: Any, dtype: str) -> str | None:
    """Why caches of this model cannot be taken apart and put together again, found by doing it with a few
    tokens; None when they can.
    """
    forward = Forward(model)
    unknown = unknown_layers(make_cache(forward.config, "device", forward.device))
    if unknown is not None:
        return f"its cache has layers of a kind that is not known ({unknown or 'none at all'})"
    return reason_against(lambda: _restored_and_plain(forward), exact=dtype == "float32")


def _restored_and_plain(forward: Forward) -> Agreement:
    """Logits of a reading that goes on from a cache that was taken apart, and of a plain one."""
    ids = trial_tokens(_TRIAL_TOKENS, forward.vocabulary_tokens)
    with torch.inference_mode():
        plain = make_cache(forward.config, "device", forward.device)
        expected = _feed(forward, plain, ids, 0, _TRIAL_TOKENS, _TRIAL_TOKENS)
        first = make_cache(forward.config, "device", forward.device)
        _feed(forward, first, ids, 0, _TRIAL_CUT, _TRIAL_CUT)
        second = restored(
            forward.config,
            "device",
            forward.device,
            _TRIAL_CUT,
            row_tensors(first, 0),
            _TRIAL_TOKENS,
            forward.layer_devices,
        )
        found = _feed(forward, second, ids, _TRIAL_CUT, _TRIAL_TOKENS, _TRIAL_TOKENS)
    return compared(found, expected)
