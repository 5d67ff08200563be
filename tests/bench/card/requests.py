"""What an engine is asked in measurements: prompts of made-up tokens, all different."""

from __future__ import annotations

from typing import Any

from pipeline.records import Decode, Request, Score

_TOKENS = 50_000  # the first of a vocabulary, which every model here has


def texts(first: int, rows: int, prompt: int, new: int, shared: int = 0, **more: int) -> list[Request]:
    """``rows`` requests, numbered from ``first``, for ``new`` tokens behind ``prompt`` tokens each, before
    which are ``shared`` ones that all have.
    """
    beginning = _ids(first - 1, shared)
    return [
        Request(number, beginning + _ids(number, prompt), Decode(new, loops_end=False), shared, **more)
        for number in range(first, first + rows)
    ]


def questions(documents: int, prompt: int, labels: int, label_tokens: int) -> list[Request]:
    """``labels`` labels to be scored behind each of ``documents`` prompts; all their tokens are wanted."""
    every = tuple(_ids(7919 * (label + 1), label_tokens) for label in range(labels))
    return [Request(number, _ids(number, prompt), Score(every)) for number in range(documents)]


def _ids(number: int, count: int) -> tuple[int, ...]:
    return tuple(3 + (number * 31 + 7 * place) % (_TOKENS - 3) for place in range(count))


def let_all_rows_in(engine: Any, plan: Any) -> None:
    """The engine looks by the clock for how many rows pay; nothing here takes time, so all are let in."""
    ramp = getattr(engine, "_ramp", None)
    if ramp is not None:
        ramp.rows = plan.max_batch_rows
        ramp.observe = lambda *_: None
