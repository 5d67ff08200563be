"""Document first where further questions about the documents make it pay, instructions first otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config import Config, parse_config
from pipeline.planner.prompt_layout import choose_layout

LABEL: dict[str, Any] = {"name": "topic", "kind": "label", "labels": ["world", "sports", "business"]}
SUMMARY: dict[str, Any] = {"name": "summary", "kind": "summarize"}
RUBRIC: dict[str, Any] = {**LABEL, "name": "rubric", "instructions": "Judge it with care. " * 200}


def config(*tasks: dict[str, Any], **store: Any) -> Config:
    return parse_config(
        {
            "model": {"id": "m"},
            "kv_cache": {"store": store},
            "source": {"path": "in.jsonl"},
            "tasks": list(tasks),
            "run": {"directory": "r"},
        }
    )


@pytest.mark.parametrize(
    ("tasks", "store", "tokens", "layout"),
    [
        ([LABEL], {}, 10_000, "instructions_first"),
        ([LABEL, SUMMARY], {}, 2_000, "document_first"),
        ([LABEL, SUMMARY], {}, 200, "instructions_first"),
        ([LABEL], {"documents": "always"}, 2_000, "document_first"),
        ([LABEL], {"documents": "always"}, 60, "instructions_first"),
        ([LABEL, SUMMARY], {"documents": "never"}, 10_000, "instructions_first"),
        ([LABEL, SUMMARY], {"quota": 0}, 10_000, "instructions_first"),
        ([RUBRIC, SUMMARY], {}, 1_000, "instructions_first"),
        ([RUBRIC, SUMMARY], {}, 20_000, "document_first"),
        ([RUBRIC], {"documents": "always"}, 1_000, "instructions_first"),
        ([{**LABEL, "gold": "gold.csv", "examples_per_label": 4}, SUMMARY], {}, 1_000, "instructions_first"),
        ([{**LABEL, "multi": True}], {}, 400, "document_first"),
        ([{**LABEL, "multi": True}], {}, 50, "instructions_first"),
        ([LABEL, SUMMARY], {}, 0, "instructions_first"),
    ],
)
def test_layout(tasks: list[dict[str, Any]], store: dict[str, Any], tokens: float, layout: str) -> None:
    assert choose_layout(config(*tasks, **store), tokens) == layout
