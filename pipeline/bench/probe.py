"""A short look at how fast this machine runs a model: a few of the user's own documents, a few tokens each.
Kept as a calibration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pipeline.bench.contestants import OURS, Contest, Heat
from pipeline.records import Decode, Request, Score

PROBE_DOCUMENTS = 16
_NEW_TOKENS = 24
_OWN_TOKENS = 1024


def speeds(contest: Contest, requests: Sequence[Request]) -> dict[str, Any]:
    """What a calibration keeps: tokens read a second, tokens written a second by as many rows as there are
    requests.
    """
    short = [
        dataclasses.replace(request, ids=request.ids[: request.prefix_tokens + _OWN_TOKENS])
        for request in requests[:PROBE_DOCUMENTS]
    ]
    reading = [dataclasses.replace(request, ask=Score(((request.ids[-1],),))) for request in short]
    writing = [dataclasses.replace(request, ask=Decode(_NEW_TOKENS, loops_end=False)) for request in short]
    contest.run(OURS, reading[:2])  # what is allocated or tried out on first use is no part of the speed
    return {
        **_read_rate(contest.run(OURS, reading), reading),
        **_write_rate(contest.run(OURS, writing), writing),
        "load_seconds": float(contest.facts["load_seconds"]) or None,
    }


def _read_rate(heat: Heat, requests: Sequence[Request]) -> dict[str, Any]:
    own = [len(request.ids) - request.prefix_tokens for request in requests]
    passes = heat.passes
    share = heat.seconds / max(passes.seconds, 1e-9)  # what is done between passes is part of the speed
    return {
        "prefill_tokens_per_second": passes.read_tokens / (passes.read_seconds * share),
        "prefill_at_tokens": max(1, sum(own) // len(own)),
    }


def _write_rate(heat: Heat, requests: Sequence[Request]) -> dict[str, Any]:
    passes = heat.passes
    if not passes.decode_tokens or not passes.decode_seconds:
        return {}
    share = heat.seconds / passes.seconds
    return {
        "decode_tokens_per_second": passes.decode_tokens / (passes.decode_seconds * share),
        "decode_at_rows": len(requests),
        "decode_at_tokens": sum(len(request.ids) for request in requests) // len(requests) + _NEW_TOKENS // 2,
    }
