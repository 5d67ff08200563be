"""The ratios the product promises, on real documents where the corpora are at hand: medians of interleaved
turns in one run.

``OVERNIGHT_CORPORA`` names a folder with ag_news, banking77 and cnn_dailymail (dev.jsonl each, labels.json,
rubric.txt).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.bench.compare import bench
from pipeline.bench.results import BenchResult, table
from pipeline.bench.turns import BenchOptions
from pipeline.config import parse_config

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]


@pytest.fixture
def corpora() -> Path:
    folder = os.environ.get("OVERNIGHT_CORPORA")
    if not folder:
        pytest.skip("OVERNIGHT_CORPORA names no folder of corpora")
    return Path(folder)


def _bench(model: Path, path: Path, task: dict[str, Any], tmp_path: Path, **options: Any) -> BenchResult:
    config = parse_config(
        {
            "model": {"id": str(model), "quantization": "none", "dtype": "float32"},
            "source": {"path": str(path)},
            "tasks": [{"name": "task", **task}],
            "run": {"directory": str(tmp_path / "run")},
        }
    )
    result = bench(config, BenchOptions(**options), print)
    print("\n".join(table(result)))
    return result


def _of_tokens(path: Path, target: Path, characters: range) -> Path:
    """A copy of the JSON Lines file with the documents whose text has so many characters."""
    lines = [
        line for line in path.read_text("utf-8").splitlines() if len(json.loads(line)["text"]) in characters
    ]
    target.write_text("\n".join(lines), "utf-8")
    return target


def _ratio(one: BenchResult, other: BenchResult) -> float:
    return one.line("overnight").seconds_per_document / other.line("overnight").seconds_per_document


def test_labelling_with_a_long_rubric(corpora: Path, demo_model_folder: Path, tmp_path: Path) -> None:
    labels = json.loads((corpora / "ag_news/labels.json").read_text())
    task = {"kind": "label", "labels": labels, "instructions": (corpora / "ag_news/rubric.txt").read_text()}
    result = _bench(
        demo_model_folder,
        corpora / "ag_news/dev.jsonl",
        task,
        tmp_path,
        documents=200,
        slow_documents=4,
        repetitions=3,
        contestants=("naive", "pass_per_label"),
    )
    ours = result.line("overnight")
    assert result.line("pass_per_label").same == 1
    assert result.line("naive").speedup >= 9
    assert ours.matmul_share >= 0.70
    assert ours.forward_share >= 0.90
    assert ours.padding_share <= 0.08


def test_many_labels(corpora: Path, demo_model_folder: Path, tmp_path: Path) -> None:
    labels = json.loads((corpora / "banking77/labels.json").read_text())
    path = corpora / "banking77/dev.jsonl"
    options: dict[str, Any] = {
        "documents": 24,
        "slow_documents": 2,
        "repetitions": 3,
        "contestants": ("pass_per_label",),
    }
    best_first = _bench(
        demo_model_folder,
        path,
        {"kind": "label", "labels": labels, "score_tolerance": 0.001},
        tmp_path,
        **options,
    )
    whole = _bench(
        demo_model_folder,
        path,
        {"kind": "label", "labels": labels, "score_tolerance": 0.0},
        tmp_path,
        **options,
    )
    few = _bench(
        demo_model_folder,
        path,
        {"kind": "label", "labels": labels[:4], "score_tolerance": 0.001},
        tmp_path,
        **options,
    )
    assert whole.line("pass_per_label").speedup >= 3
    assert whole.line("pass_per_label").same == 1
    # The demo model spreads its probability over most of the 382 nodes, so that there is little to leave out:
    # the search must notice.
    assert best_first.line("pass_per_label").speedup >= 3
    assert (
        best_first.line("overnight").seconds_per_document
        <= 1.2 * whole.line("overnight").seconds_per_document
    )
    print(f"77 labels cost {_ratio(best_first, few):.1f} times as much as 4")


def test_summarizing(corpora: Path, demo_model_folder: Path, tmp_path: Path) -> None:
    path = _of_tokens(corpora / "cnn_dailymail/dev.jsonl", tmp_path / "cnn.jsonl", range(1200, 2400))
    result = _bench(
        demo_model_folder,
        path,
        {"kind": "summarize", "max_output_tokens": 64},
        tmp_path,
        documents=100,
        slow_documents=3,
        repetitions=3,
        to_the_end=True,
        contestants=("naive", "static"),
    )
    ours = result.line("overnight")
    assert (result.line("naive").same or 0) >= 0.99
    assert result.line("naive").speedup >= 4
    assert result.line("static").speedup > 1
    assert ours.matmul_share >= 0.55
    assert ours.forward_share >= 0.90
    assert ours.padding_share <= 0.08
