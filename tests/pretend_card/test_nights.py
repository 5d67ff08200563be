"""Whole nights on a card, under the settings that are shipped for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.small_models import save_llama
from tests.nights import documents
from tests.pretend_card.card_nights import CardNight, shipped
from tests.programs import ROOT

# what a configuration's name says of its card
CARDS = {"gpu-8gb": "8GiB", "gpu-24gb": "24GiB"}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=16384)


def night(folder: Path, model: Path, name: str, **changes: Any) -> CardNight:
    """Five documents under the settings of ``configs/NAME.yaml``; texts end after 8 tokens."""
    settings = shipped(name, model, folder / "in.jsonl")
    tasks = [
        {**task, "max_output_tokens": 8} if task["kind"] == "summarize" else task
        for task in settings.pop("tasks")
    ]
    settings["run"].pop("directory")
    rows = [
        {"id": row["id"], "text": row["text"], "document": row["text"]} for row in documents(5, longest=12)
    ]
    for key, value in changes.items():
        settings[key] = {**settings.get(key, {}), **value}
    return CardNight(folder, rows, tasks, extra=settings, options={"PRETEND_CARD": CARDS[name]})


def test_there_is_a_card_for_every_shipped_configuration() -> None:
    assert {path.stem for path in (ROOT / "configs").glob("gpu-*.yaml")} == set(CARDS)


@pytest.mark.parametrize("name", ["gpu-8gb", pytest.param("gpu-24gb", marks=pytest.mark.full)])
def test_every_shipped_configuration_starts_and_ends(name: str, model: Path, tmp_path: Path) -> None:
    """``max_memory`` of card 0 reaches the worker as it was written. Only the worker has a context on the
    card, from the start of the night to its end.
    """
    made = night(tmp_path, model, name)
    done = made.run()
    assert done.returncode == 0, done.stderr
    assert made.races == []
    assert [row["id"] for row in made.export()] == [row["id"] for row in made.rows]
    (worker,), (runner,) = made.workers, made.that_ran("main")
    assert (worker["initialized"], runner["initialized"]) == (True, False)
    assert worker["memory"]["0"]["peak_allocated"] > 0
    assert worker["counts"]["op bitsandbytes::gemm_4bit"] > 0


def test_offloaded_keys_and_values_with_a_store(model: Path, tmp_path: Path) -> None:
    kv = {"placement": "offloaded", "store": {"documents": "always", "quota": "1GB"}}
    made = night(tmp_path, model, "gpu-8gb", kv_cache=kv)
    done = made.run()
    assert done.returncode == 0, done.stderr
    assert made.races == []
    assert {row["id"] for row in made.export()} == {row["id"] for row in made.rows}
