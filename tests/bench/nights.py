"""Nights of any size over the scripted engine, run in this process or a process of its own, and what they
cost.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline.config import Config, parse_config
from pipeline.records import Answer, Outcome
from pipeline.run.runner import run
from pipeline.sources import read_source
from pipeline.stores.ledger.ledger import Ledger
from tests.nights import SCRIPTED

_SENTENCE = "The board met {} times and decided nothing. "
_GROUP = 50_000


def texts(count: int, sentences: int = 8, long_every: int = 0, long_sentences: int = 0) -> Iterator[str]:
    """So many texts; each ``long_every``-th has ``long_sentences``."""
    for number in range(count):
        long = long_every and number % long_every == long_every // 2
        yield _SENTENCE.format(number) * (long_sentences if long else sentences)


def configured(folder: Path, rows: Iterator[str], kind: str = "label", batch_rows: int = 32) -> Config:
    """A night over ``rows``, which are written to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "in.jsonl"
    with source.open("w", encoding="utf-8") as stream:
        stream.writelines(
            json.dumps({"id": f"d{number}", "text": text}) + "\n" for number, text in enumerate(rows)
        )
    asked = {"label": {"labels": ["world", "sports", "business"]}, "summarize": {"max_output_tokens": 40}}[
        kind
    ]
    return parse_config(
        {
            "model": {"id": "scripted", "quantization": "none", "context_tokens": 1200},
            "source": {"path": str(source)},
            "tasks": [{"name": "task", "kind": kind, "instructions": "Which?", **asked}],
            "engine": {"backend": SCRIPTED, "batch_rows": batch_rows},
            "run": {"directory": str(folder / "run")},
        }
    )


def waiting(config: Config) -> dict[str, float]:
    """How long the model of the latest run was there, and how long of it it waited for work."""
    with closing(sqlite3.connect(Path(config.run.directory) / "ledger.sqlite")) as ledger:
        (facts,) = ledger.execute(
            "SELECT json_extract(facts, '$.waiting') FROM runs ORDER BY id DESC LIMIT 1"
        ).fetchone()
    told: dict[str, float] = json.loads(facts)
    return told


def finish_all(config: Config) -> None:
    """Give every document an answer as a night would have, in groups so large, and so ordered, that a million
    take minutes.
    """
    path = Path(config.run.directory) / "ledger.sqlite"
    with Ledger.open(path, write=True) as ledger:
        (task,) = ledger.tasks()
        name, number = task.job.name, ledger.begin_run({"config": config.model_dump(mode="json")})
        inventory = ledger.start_inventory(number)
        keys = []
        for document in read_source(config.source, ()):
            inventory.enter([document])
            # the source is written here and has no rejects
            keys.append(task.job.key(document))  # type: ignore[arg-type]
        inventory.finish()
        answer = Answer(
            "world",
            "stop",
            {"world": 0.5, "sports": 0.3, "business": 0.2},
            {"world": -0.7, "sports": -1.2, "business": -1.6},
        )
        keys.sort()
        for begin in range(0, len(keys), _GROUP):
            works = [(name, key) for key in ledger.pending(name, keys[begin : begin + _GROUP])]
            ledger.mark(number, works)
            ledger.finish(number, [Outcome(name, key, "done", answer) for _, key in works])
        ledger.end_run(number, 0, "done")


def main() -> None:
    """``python -m tests.bench.nights FOLDER COUNT``: a night in this process; prints what it took as one JSON
    object.
    """
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    config = configured(folder, texts(count))
    started, spent = time.monotonic(), time.process_time()
    done = run(config)
    facts: dict[str, Any] = {
        "seconds": time.monotonic() - started,
        "cpu_seconds": time.process_time() - spent,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "exit_code": done.exit_code,
        "done": done.status.tasks["task"]["done"],
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
