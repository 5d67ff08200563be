"""A model on two cards: parts that compute on each, the CPU's answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.engine.select import select_engine
from pipeline.errors import ConfigError
from tests.pretend_card.engines import Case, folder_of, loaded_on, run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize(
    "case",
    [
        Case("static", "none", "bfloat16"),
        Case("static", "nf4", "bfloat16", store=True),
        pytest.param(Case("static", "none", "float16", "offloaded", store=True), marks=pytest.mark.full),
        pytest.param(Case("static", "int8", "float16"), marks=pytest.mark.full),
    ],
    ids=str,
)
def test_layers_on_both(case: Case, folder: Path, tmp_path: Path, cards: Callable[..., None]) -> None:
    cards("2x8GiB")
    whole = loaded_on(folder, case.quantization, case.dtype).placement.needed_bytes
    share = whole * 19 // 20
    loaded = loaded_on(folder, case.quantization, case.dtype, max_memory={0: share, 1: share, "cpu": 0})
    assert set(loaded.placement.bytes_by_device) == {"0", "1"}
    assert {parameter.device.index for parameter in loaded.model.parameters()} == {0, 1}
    assert run(case, loaded, folder, tmp_path / "store") <= 2 * (1 + case.store)


def test_packed_passes_leave_it_to_static_batches_and_say_so(
    folder: Path, cards: Callable[..., None]
) -> None:
    cards("2x8GiB")
    share = loaded_on(folder, "none", "bfloat16").placement.needed_bytes * 19 // 20
    loaded = loaded_on(folder, "none", "bfloat16", max_memory={0: share, 1: share})
    _, told = select_engine(loaded, Case("packed", "none", "bfloat16").plan, end_ids=(), pad_id=0)
    assert told.startswith("static batches;")
    assert "spread over several devices" in told


def test_the_second_alone(folder: Path, tmp_path: Path, cards: Callable[..., None]) -> None:
    cards("2x8GiB")
    case = Case("packed", "none", "float32")
    loaded = loaded_on(folder, "none", "float32", max_memory={1: 2**30})
    assert {parameter.device.index for parameter in loaded.model.parameters()} == {1}
    assert run(case, loaded, folder, tmp_path / "store") == 0


def test_one_that_is_not_there_is_named(folder: Path, cards: Callable[..., None]) -> None:
    cards("2x8GiB")
    with pytest.raises(ConfigError, match="names graphics card 2; this machine has 2"):
        loaded_on(folder, "none", "float32", max_memory={2: 2**30})
