"""A run over real files, answered without an engine: what an export reads is all there."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.config import Config
from pipeline.records import Document
from pipeline.results.export import Exported, Layout, export
from pipeline.sources import read_source
from pipeline.stores.ledger.ledger import Ledger
from tests.stores.ledger.ledgers import done, job, read

LABELS = (("world", None), ("sports", None), ("tech", None))
ODDS = {"world": 0.6, "sports": 0.3, "tech": 0.1}
ALL = Layout(fields=None)


@contextmanager
def answered(
    folder: Path,
    source: Path | list[str],
    *,
    fields: tuple[str, ...] = (),
    pending: int = 0,
    limit: int | None = None,
    **settings: Any,
) -> Iterator[Ledger]:
    """A ledger over ``source``, whose documents but the last ``pending`` ones have the label "world".
    ``fields``: what the task's template reads.
    """
    path = source if isinstance(source, list) else str(source)
    config = Config.model_validate(
        {
            "model": {"id": "m"},
            "source": {"path": path, **settings},
            "tasks": [{"name": "topic", "kind": "label", "labels": dict(LABELS)}],
            "run": {"directory": str(folder / "run")},
        }
    )
    (folder / "run").mkdir(parents=True, exist_ok=True)
    rows = [row for row in read_source(config.source, fields) if isinstance(row, Document)][:limit]
    task = job(fields=fields, labels=LABELS)
    with Ledger.open(folder / "run" / "ledger.sqlite", write=True) as ledger:
        ledger.accept_tasks([task], fork=False)
        run = ledger.begin_run({"config": config.anywhere().model_dump(mode="json")})
        read(ledger, run, rows, complete=limit is None)
        keys = dict.fromkeys(task.key(row) for row in rows[: len(rows) - pending])
        ledger.finish(run, [done("topic", key, probabilities=ODDS) for key in keys])
        yield ledger


def table(
    ledger: Ledger, path: Path, layout: Layout = ALL, **how: Any
) -> tuple[list[dict[str, Any]], Exported]:
    """The rows that an export has written, and what it says of them."""
    told = export(ledger, path, layout, **how)
    return rows_of(path), told


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.suffix in (".csv", ".tsv"):
        with path.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream, delimiter="\t" if path.suffix == ".tsv" else ","))
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist(maps_as_pydicts="strict")
    return rows


_GROWN = """
import resource, sys
from pathlib import Path
import pyarrow.parquet
from pipeline.results.export import Layout, export
from pipeline.stores.ledger.ledger import Ledger

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

out = Path(sys.argv[2])
with Ledger.open(Path(sys.argv[1]), write=False) as ledger:
    {first}
    before = peak_bytes()
    {then}
print(peak_bytes() - before)
"""


def memory_grown(ledger: Path, first: str, then: str, out: Path) -> int:
    """Bytes by which a process grows that has done ``first`` and does ``then``, both Python over an open
    ``ledger`` and a place ``out``.
    """
    command = [sys.executable, "-c", _GROWN.format(first=first, then=then), str(ledger), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    return int(done.stdout)
