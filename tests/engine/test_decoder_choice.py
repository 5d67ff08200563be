"""What ``engine.decoder: auto`` means: what was measured here, else ours; never what cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Config, parse_config
from pipeline.engine.decoder_choice import chosen_decoder, recall, remember


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))


def _config(decoder: str = "auto", **model: Any) -> Config:
    return parse_config(
        {
            "model": {"id": "some/model", **model},
            "source": {"path": "x.jsonl"},
            "engine": {"decoder": decoder},
            "tasks": [{"name": "short", "kind": "summarize"}],
            "run": {"directory": "run"},
        }
    )


def test_ours_while_nothing_was_measured() -> None:
    assert chosen_decoder(_config(), "float32", "cpu") == "overnight"


def test_what_was_measured_for_this_model_numbers_and_device() -> None:
    remember(_config(), "float32", "cpu", "transformers")
    assert chosen_decoder(_config(), "float32", "cpu") == "transformers"
    assert chosen_decoder(_config(), "bfloat16", "cpu") == "overnight"
    assert chosen_decoder(_config(), "float32", "some card") == "overnight"
    assert chosen_decoder(_config(quantization="int8"), "float32", "cpu") == "overnight"


def test_what_was_asked_for_counts_more() -> None:
    remember(_config(), "float32", "cpu", "transformers")
    assert chosen_decoder(_config("continuous"), "float32", "cpu") == "continuous"


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"format": 1, "decoder": "vllm"}', '{"format": 9, "decoder": "transformers"}'],
)
def test_damaged_memory_is_no_memory(tmp_path: Path, content: str) -> None:
    remember(_config(), "float32", "cpu", "transformers")
    for path in (tmp_path / "cache").rglob("*.json"):
        path.write_text(content)
    assert recall(_config(), "float32", "cpu") is None
