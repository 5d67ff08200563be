"""``overnight bench``: contestants over one model, their figures and their answers; over the demo model in
the full tier.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.bench.compare import bench
from pipeline.bench.placements import bench_placements, placement_table
from pipeline.bench.results import table
from pipeline.bench.turns import BenchOptions
from pipeline.config import Config, parse_config
from pipeline.errors import UsageError
from tests.engine.small_models import save_llama
from tests.programs import overnight

_TEXTS = [
    "The ferry was late again and the harbour office apologised.",
    "Two clubs drew in the rain.",
    "Rates went up.",
    "A comet was seen.",
]


@pytest.fixture(scope="module", params=["tiny", pytest.param("demo", marks=pytest.mark.full)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of weights; the figures and the ways to them are the same for small and large ones."""
    if request.param == "demo":
        demo: Path = request.getfixturevalue("demo_model_folder")
        return demo
    return save_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=2048)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench keeps what it measured."""
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))


def _config(model: Path, tmp_path: Path, *tasks: dict[str, Any]) -> Config:
    path = tmp_path / "documents.jsonl"
    path.write_text(
        "".join(json.dumps({"id": str(number), "text": text}) + "\n" for number, text in enumerate(_TEXTS))
    )
    return parse_config(
        {
            "model": {"id": str(model), "quantization": "none", "dtype": "float32"},
            "source": {"path": str(path)},
            "tasks": list(tasks),
            "run": {"directory": str(tmp_path / "run")},
        }
    )


@pytest.mark.full
def test_texts(model: Path, tmp_path: Path) -> None:
    config = _config(model, tmp_path, {"name": "short", "kind": "summarize", "max_output_tokens": 6})
    result = bench(config, BenchOptions(documents=4, slow_documents=2, repetitions=1, to_the_end=True))
    assert [line.name for line in result.lines] == ["overnight", "naive", "static", "generate_batch"]
    assert result.output_tokens == 6
    assert all(line.same == 1 for line in result.lines)
    ours = result.line("overnight")
    assert ours.speedup == 1
    assert ours.padding_share == 0
    assert 0 < ours.forward_share <= 1
    assert result.line("static").padding_share > 0  # prompts of different lengths in one rectangle
    assert result.line("naive").read_tokens_per_second
    assert result.line("naive").decode_tokens_per_second
    assert result.matmul_gflops > 0
    assert any(text.startswith("naive") for text in table(result))
    json.dumps(result.to_json())


def test_labels(model: Path, tmp_path: Path) -> None:
    task = {
        "name": "topic",
        "kind": "label",
        "labels": ["world", "sports", "state of the harbour"],
        "score_tolerance": 0,
    }
    config = _config(model, tmp_path, {"name": "short", "kind": "summarize"}, task)
    options = BenchOptions(
        documents=4, slow_documents=2, repetitions=1, task="topic", contestants=("pass_per_label",)
    )
    result = bench(config, options)
    assert [line.name for line in result.lines] == ["overnight", "pass_per_label"]
    assert result.line("pass_per_label").same == 1


def test_wrong_names(model: Path, tmp_path: Path) -> None:
    config = _config(model, tmp_path, {"name": "short", "kind": "summarize"})
    with pytest.raises(UsageError, match="no task 'long'"):
        bench(config, BenchOptions(task="long"))
    with pytest.raises(UsageError, match="no contestant 'vllm'"):
        bench(config, BenchOptions(contestants=("vllm",)))


def test_placements(model: Path, tmp_path: Path) -> None:
    config = _config(model, tmp_path, {"name": "short", "kind": "summarize"})
    result = bench_placements(config, [40, 90, 10**6], new_tokens=3, repetitions=2)
    assert [(line.placement, line.context_tokens) for line in result.lines] == [
        (placement, tokens)
        for tokens in (40, 90)
        for placement in ("device", "offloaded", "disk", "quantized")
    ]
    assert "1,000,000" in result.skipped[0]
    for line in result.lines:
        assert line.prefill_seconds > 0
        assert line.seconds_per_token > 0
        if line.placement == "device":
            assert line.decode_slower == line.prefill_slower == 1
        if line.placement != "quantized":
            assert line.same
    device, quantized = result.lines[0], result.lines[3]
    assert device.kv_bytes == 4 * quantized.kv_bytes
    assert len(placement_table(result)) == 2 + 8 + 1
    json.dumps(result.to_json())
    with pytest.raises(UsageError, match="none of the prompt lengths"):
        bench_placements(config, [10**6])


@pytest.mark.full
def test_command(model: Path, tmp_path: Path) -> None:
    config = _config(model, tmp_path, {"name": "short", "kind": "summarize", "max_output_tokens": 2})
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    done = overnight(
        "bench", str(path), "--documents", "2", "--repetitions", "1", "--only", "static", "--json"
    )
    facts = json.loads(done.stdout)
    assert [line["name"] for line in facts["lines"]] == ["overnight", "static"]
