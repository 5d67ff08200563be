"""A process that loads the demo model, says so, waits for a line, then answers one long prompt with its cache
where it is told.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
from pathlib import Path
from typing import Any, cast

import torch

from pipeline.config import parse_config
from pipeline.engine.model.loading import load_model
from pipeline.engine.static.engine import StaticEngine
from pipeline.records import Decode, Plan, Request

PLAN = Plan("float32", "none", "device", "instructions_first", 8192, 1, 8192, 128, 46080)


def answer(engine: StaticEngine, number: int, tokens: int, new_tokens: int) -> list[int]:
    ids = tuple(3 + (7 * place * place + 11 * place) % 40_000 for place in range(tokens))
    engine.admit([Request(number, ids, Decode(new_tokens, loops_end=False))])
    while not engine.idle:
        for generation in engine.step():
            assert generation.error is None, generation.error
            return list(generation.token_ids)
    raise AssertionError("no answer")


def main(folder: str, model: str, placement: str, tokens: str, new_tokens: str) -> None:
    config = parse_config(
        {
            "model": {"id": model, "quantization": "none", "dtype": "float32"},
            "source": {"path": "none"},
            "tasks": [{"name": "none", "kind": "summarize"}],
            "run": {"directory": folder},
        }
    )
    torch.set_num_threads(1)
    loaded = load_model(config.model, "float32", Path(folder), lambda _: None)
    engine = StaticEngine(
        loaded.model,
        dataclasses.replace(PLAN, placement=cast("Any", placement)),
        end_ids=(),
        pad_id=0,
        kv_folder=Path(folder),
    )
    answer(engine, 0, 300, 3)  # what is allocated on first use belongs to the loaded process
    gc.collect()
    print(json.dumps({"loaded": True}), flush=True)
    sys.stdin.readline()
    print(json.dumps({"tokens": answer(engine, 1, int(tokens), int(new_tokens))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
