"""A bench in the user's cache folder may make the plan's times better. It changes no answer, no feature and
no engine of a later run; nor does the file by which benches of 0.1.0 chose the decoder of all runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.bench.compare import bench
from pipeline.bench.turns import BenchOptions
from pipeline.config import Config, parse_config
from pipeline.records import digest
from pipeline.run.runner import run
from pipeline.stores.ledger.ledger import Ledger
from tests.recorded.old_runs import RECORDED, TASKS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _config(directory: Path) -> Config:
    return parse_config(
        {
            "model": {"id": str(RECORDED / "model"), "quantization": "none", "dtype": "float32"},
            "kv_cache": {"store": {"documents": "always"}},
            "source": {"path": str(RECORDED / "in.jsonl")},
            "tasks": TASKS,
            "generation": {"layout": "document_first"},
            "engine": {"threads": 1},
            "run": {"directory": str(directory)},
        }
    )


def _night(directory: Path) -> dict[str, Any]:
    """What a run answered, and by what."""
    assert run(_config(directory)).exit_code == 3  # one document has no title
    with Ledger.open(directory / "ledger.sqlite", write=False) as ledger:
        loaded = ledger.runs()[-1]["facts"]["loaded"]
        answers = {
            task.job.name: [(row["value"], row["finish_reason"]) for row in ledger.results(task.job.name)]
            for task in ledger.tasks()
        }
    return {
        "answers": answers,
        "engine": loaded["engine"],
        "store": loaded["kv_store"].replace(str(directory), "run"),
        "stored": sorted(path.name for path in (directory / "kv").rglob("*.safetensors")),
    }


def _leave_as_0_1_0(cache: Path, model: str) -> None:
    """What a bench of that version wrote where the library's decoder had won."""
    key = digest(model, "None", "none", "float32", "cpu")
    (cache / "decoders").mkdir(parents=True, exist_ok=True)
    (cache / "decoders" / f"{key}.json").write_text(
        json.dumps({"format": 1, "decoder": "transformers", "model": model, "device": "cpu"})
    )


@pytest.mark.full
def test_a_bench_changes_nothing_that_a_run_does(tmp_path: Path, cache: Path) -> None:
    before = _night(tmp_path / "before")
    assert before["engine"] == "continuous batching over packed passes"
    assert before["stored"]
    result = bench(_config(tmp_path / "bench"), BenchOptions(documents=4, repetitions=1, task="short"))
    assert [line.name for line in result.lines] == ["overnight", "naive", "static", "generate_batch"]
    assert [path.name for path in cache.iterdir()] == ["speeds"]
    _leave_as_0_1_0(cache, str(RECORDED / "model"))
    assert _night(tmp_path / "after") == before
