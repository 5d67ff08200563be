"""Every engine on a card gives the CPU's answers, wherever weights, keys and values lie."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pretend_card.engines import Case, folder_of, loaded_on, run, streamed_on

QUICK = (
    Case("packed", "none", "float32"),
    Case("packed", "none", "bfloat16", store=True),
    Case("packed", "nf4", "float16"),
    Case("packed", "nf4", "bfloat16", store=True),
    Case("packed", "int8", "float16"),
    Case("static", "nf4", "bfloat16", store=True),
    Case("static", "none", "bfloat16", "offloaded"),
    Case("static", "nf4", "float16", "offloaded", store=True),
    Case("static", "int8", "bfloat16", "disk"),
    Case("streamed", "nf4", "bfloat16"),
    Case("streamed", "none", "float16", "offloaded"),
    Case("streamed", "int8", "float16", "disk"),
)
PRODUCT = (
    Case(engine, quantization, dtype, placement, store)
    for engine, quantization, dtype, placement, store in itertools.product(
        ("packed", "static", "streamed"),
        ("none", "nf4", "int8"),
        ("float32", "bfloat16", "float16"),
        ("device", "offloaded", "disk"),
        (False, True),
    )
    # packed passes keep all on the card; batches on streamed weights and caches on the disk know no store
    if (engine != "packed" or placement == "device")
    and not (store and (placement == "disk" or (engine, placement) == ("streamed", "offloaded")))
)
FULL = tuple(case for case in PRODUCT if case not in QUICK)
cases = pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(case, marks=pytest.mark.full) for case in FULL)], ids=str
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("engines"))


@cases
def test_answers_are_the_cpus(
    case: Case, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))
    if case.engine == "streamed":
        loaded = streamed_on(folder, case)
    else:
        loaded = loaded_on(folder, case.quantization, case.dtype)
    assert loaded.input_device == torch.device("cuda", 0)
    ties = run(case, loaded, folder, tmp_path / "store")
    record_property("near_ties", ties)
    assert ties <= 2 * (1 + case.store)
