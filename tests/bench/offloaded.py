"""A process that runs a model with the library's own disk offload.

As a script: ``python -m tests.bench.offloaded MODEL RESULT ALLOWED_BYTES ROWS NEW_TOKENS DTYPE [PROMPT]``;
waits for a line first.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from pathlib import Path

from pipeline.engine.model.loading import load_model
from pipeline.engine.static.engine import StaticEngine
from tests.engine.streaming.large_model import PROMPT_TOKENS, plan, requests
from tests.engine.streaming.opened import answers, configured


def main(
    folder: str,
    result: str,
    allowed: str,
    rows: str,
    new_tokens: str,
    dtype: str,
    prompt: str = str(PROMPT_TOKENS),
) -> None:
    sys.stdin.readline()
    config = configured(Path(folder), "none", int(allowed))
    loaded = load_model(config.model, dtype, Path(result).parent / "offload")
    engine = StaticEngine(
        loaded.model, dataclasses.replace(plan(int(rows)), dtype=dtype), end_ids=(), pad_id=0
    )
    ends: list[float] = []
    engine._forward.after_pass = lambda: ends.append(time.perf_counter())
    started = time.perf_counter()
    answers(engine, requests(int(rows), int(new_tokens), int(prompt)))
    facts = {
        "seconds": time.perf_counter() - started,
        "sweep_seconds": [round(end - begin, 3) for begin, end in itertools.pairwise(ends)],
        "bytes_by_device": loaded.facts["bytes_by_device"],
    }
    Path(result).write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
