"""Planned activations of whole-size models are what passes over prompts hold of a card, or little more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.card.activations import MODELS, activations

QUICK = "qwen2-1.5b"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.full) for name in MODELS]
)
def test_they_are_as_planned(name: str, cards: Callable[..., None], tmp_path: Path) -> None:
    from tests.bench.card.device import Device

    cards("24GiB", dry="1", poison="0")
    found = activations(name, tmp_path, Device())
    assert found.held_bytes <= found.planned_bytes <= 1.15 * found.held_bytes
