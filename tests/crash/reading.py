"""``python -m tests.crash.reading FOLDER MODEL PAUSE TOKENS CHUNK NEW_TOKENS``: one long document, read and
continued by a model whose every pass takes PAUSE seconds longer.

Writes each pass's tokens to ``progress`` as they are computed (it outlives kill -9), and the text to
``text.json`` at its end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pipeline.config import parse_config
from pipeline.engine.hf_backend import TransformersBackend
from pipeline.engine.packed.model_runner import PackedModelRunner
from pipeline.records import Decode, Plan, Request

ROOT = Path(__file__).parents[2]
HEAD_TOKENS, QUESTION = 30, "\n\nSum up the reports above in a few sentences."


def request(backend: TransformersBackend, tokens: int, new_tokens: int) -> Request:
    """A document of ``tokens`` tokens between a head and a question."""
    tokenizer = backend.tokenizer()
    texts = [
        json.loads(line)["text"]
        for line in (ROOT / "data" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    ids = tokenizer.encode("\n\n".join(texts * 3))[: HEAD_TOKENS + tokens]
    return Request(1, (*ids, *tokenizer.encode(QUESTION)), Decode(new_tokens), HEAD_TOKENS, tokens)


def watched(folder: Path, pause: float) -> None:
    """Have every pass told to ``progress``: "read" stretches of the document, "pass" everything else."""
    descriptor = os.open(folder / "progress", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    extend, run = PackedModelRunner.extend, PackedModelRunner.run

    def tell(kind: str, tokens: int) -> None:
        time.sleep(pause)
        os.write(descriptor, f"{kind} {tokens}\n".encode())

    def told_extend(self: PackedModelRunner, prefix: Any, ids: Any) -> None:
        extend(self, prefix, ids)
        tell("read", len(ids))

    def told_run(self: PackedModelRunner, feeds: Any) -> Any:
        logits = run(self, feeds)
        tell("pass", sum(feed.size for feed in feeds))
        return logits

    PackedModelRunner.extend, PackedModelRunner.run = told_extend, told_run  # type: ignore[method-assign]


def main() -> None:
    folder, model, pause = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    tokens, chunk, new_tokens = map(int, sys.argv[4:7])
    config = parse_config(
        {
            "model": {"id": model, "quantization": "none", "dtype": "float32"},
            "kv_cache": {
                "store": {"path": str(folder / "store"), "checkpoint_seconds": 0.05, "keep_free": 0}
            },
            "source": {"path": "unused"},
            "tasks": [{"name": "summary", "kind": "summarize"}],
            "run": {"directory": str(folder)},
        }
    )
    backend = TransformersBackend(config)
    plan = Plan("float32", "none", "device", "document_first", 8192, 4, 20_000, chunk, 46_080)
    engine, _ = backend.open_engine(plan, folder / "offload", print)
    asked = request(backend, tokens, new_tokens)
    watched(folder, pause)
    print("loaded", flush=True)
    engine.admit([asked])
    done = []
    while not engine.idle:
        done += list(engine.step())
    facts = backend.store_facts(close=True)
    result = {"tokens": done[0].token_ids, "error": done[0].error, "facts": dict(facts)}
    (folder / "text.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
