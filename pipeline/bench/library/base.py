"""What the library's own decoders have in common: which requests they take, who answers the others, and how
they are tried out.

A library decoder takes greedy Decode requests. Scores, sampled texts (the library draws its random numbers
otherwise than ``pipeline.engine.sampling.sampler``), requests that must be refused, and whatever failed in
the library go to the static engine, which has every way out of failure. Tokens pass through
``generate.Output``, so that a text ends where it ends in our own decoders.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch

from pipeline.engine.interface import Listener
from pipeline.engine.sampling.sampler import sampler_for
from pipeline.engine.static.engine import StaticEngine
from pipeline.engine.trial import Agreement, reason_against, trial_tokens
from pipeline.records import Decode, Generation, Plan, Request

_log = logging.getLogger(__name__)

_TRIAL_PREFIX_TOKENS = 40  # more than a page of the paged cache, so that two prompts share one
_TRIAL_NEW_TOKENS = 3


class LibraryEngine:
    """Implements ``pipeline.engine.interface.Engine`` except for ``_work``. One thread asks; the model is
    never moved.
    """

    spread = False
    """Whether the model may be spread over several devices."""

    def __init__(
        self,
        model: Any,
        plan: Plan,
        *,
        end_ids: Sequence[int],
        pad_id: int,
        static: StaticEngine,
        attention: str,
    ) -> None:
        self.listener: Listener | None = None
        self.given_up: str | None = None
        """What the library raised last, None while all went well."""
        self.on_trial = False
        self.log_probabilities: dict[int, list[float]] = {}
        """Of the tokens chosen for each request, as far as the library tells them; filled only in a trial."""
        self._model = model
        self._plan = plan
        self._end_ids = frozenset(end_ids)
        self._pad_id = pad_id
        self._static = static
        self._attention = attention
        self._queue: dict[int, Request] = {}

    @property
    def idle(self) -> bool:
        """True when nothing is queued or running."""
        return not self._queue and self._static.idle

    @property
    def busy(self) -> bool:
        """True while the library holds requests between two steps, and so the model."""
        return False

    def admit(self, requests: Sequence[Request]) -> None:
        """Queue ``requests``."""
        for request in requests:
            if _is_greedy(request) and not self._static.refuses(request):
                self._queue[request.request_id] = request
            else:
                self._static.admit([request])

    def release(self, request_ids: Collection[int]) -> None:
        """Forget queued requests; unknown ids are fine."""
        self._static.release(request_ids)
        for request_id in request_ids:
            self._queue.pop(request_id, None)

    def step(self) -> Sequence[Generation]:
        """The library's next piece of work, or the static engine's when that has something to do and the
        model is free.
        """
        if self.idle:
            return ()
        if not self.busy and not self._static.idle:
            self._static.listener = self.listener
            return self._static.step()
        return self._work()

    def _work(self) -> Sequence[Generation]:
        raise NotImplementedError

    def _give_up(self, requests: Sequence[Request], error: Exception) -> None:
        """Leave ``requests`` to the static engine, which runs them smaller or alone and names the guilty."""
        self.given_up = f"{type(error).__name__}: {' '.join(str(error).split())}"
        _log.info("%d requests are done again in static batches (%s)", len(requests), self.given_up)
        self._static.admit(requests)


def _is_greedy(request: Request) -> bool:
    return isinstance(request.ask, Decode) and sampler_for(request.ask.sampling) is None


def disagreement(engine: LibraryEngine, model: Any, plan: Plan) -> str | None:
    """Why ``engine`` is not for ``model``, found by letting it continue two short prompts; None when it is.

    Every token it chose must have the best logit of a plain pass over prompt and text, and the
    log-probability that the library says, within rounding. ``engine`` must be new and have no end tokens.
    """
    count = min(_TRIAL_PREFIX_TOKENS, plan.context_tokens // 2)
    shared = trial_tokens(count, int(model.get_input_embeddings().weight.shape[0]))
    requests = [
        Request(number, (*shared, *tail), Decode(_TRIAL_NEW_TOKENS), len(shared))
        for number, tail in enumerate([(5, 11, 8), (17, 4)])
    ]
    texts: dict[int, tuple[int, ...]] = {}
    engine.on_trial = True
    engine.admit(requests)
    while not engine.idle and engine.given_up is None:
        texts.update((generation.request_id, generation.token_ids) for generation in engine.step())
    if engine.given_up is not None:
        return engine.given_up
    exact = plan.dtype == "float32" and plan.quantization != "int8"  # whose rounding is the library's
    told = engine.log_probabilities
    for asked in requests:
        text = texts[asked.request_id]
        reason = reason_against(
            partial(_agreement, model, asked.ids, text, told.get(asked.request_id)), exact=exact
        )
        if reason is not None:
            return reason
    return None


def _agreement(
    model: Any, prompt: Sequence[int], text: Sequence[int], told: Sequence[float] | None
) -> Agreement:
    """By how much ``text`` and its ``told`` log-probabilities contradict a plain pass at worst, and the
    largest logit of that pass.
    """
    ids = torch.tensor([[*prompt, *text]], device=model.get_input_embeddings().weight.device)
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().cpu()
    chosen = logits.gather(1, ids[0, len(prompt) :, None].cpu())[:, 0]
    differences = logits.max(-1).values - chosen
    if told is not None:
        differences = torch.maximum(
            differences, (chosen - logits.logsumexp(-1) - torch.tensor(list(told))).abs()
        )
    worst = float(differences.max())
    return Agreement(worst if math.isfinite(worst) else math.inf, float(logits.abs().max()))
