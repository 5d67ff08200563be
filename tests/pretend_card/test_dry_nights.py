"""Whole-size models on whole-size cards, followed and not computed: what the plan accepts never runs out of
memory, and takes what the plan says; what it refuses it refuses with a sentence.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import DoesNotFit
from tests.bench.card.children import on_a_card
from tests.bench.card.pairs import LEAST_OF_PLAN, MODELS, MOST_OF_PLAN, SIZES
from tests.bench.card.planning import NEW_TOKENS, machine_with, planned
from tests.bench.card.tables import night_line


def spend(model: str, size: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = on_a_card("tests.bench.card.night", model, str(folder), cards=size, folder=folder)
    return found


def require_a_sentence(refusal: str) -> None:
    assert re.search(r"\d.* (GiB|MiB)", refusal), "a refusal names sizes"
    assert "use a smaller model" in refusal


def require_a_good_night(found: dict[str, Any]) -> None:
    parts = {part["name"]: part for part in found["parts"]}
    told = night_line(found)
    assert all(part["out_of_memory"] == 0 for part in parts.values()), told
    assert parts["decode passes"]["answers"] == found["rows"], told
    assert parts["decode passes"]["steps"] >= NEW_TOKENS or "micro-batches" in found["engine"], told
    assert parts["a rung of the ladder"]["told"] == ["ran short of memory: read in smaller passes"], told
    assert not any("ran out" in note for part in parts.values() for note in part["told"]), told
    assert found["races"] == []
    assert LEAST_OF_PLAN <= found["peak_bytes"] / found["planned_bytes"] <= MOST_OF_PLAN, told


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("model", MODELS)
def test_a_dry_night(model: str, size: str, tmp_path: Path) -> None:
    found = spend(model, size, tmp_path)
    if "refused" in found:
        require_a_sentence(found["refused"])
    else:
        require_a_good_night(found)


@pytest.mark.parametrize(("model", "size"), [("llama-70b", "1GiB"), ("gpt-oss-20b", "2GiB")])
def test_what_no_card_of_that_size_holds_is_refused(model: str, size: str, tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit) as refused:
        planned(model, tmp_path, machine_with(size))
    require_a_sentence(str(refused.value))
