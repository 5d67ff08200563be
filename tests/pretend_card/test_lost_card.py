"""Cards that fail or vanish in the middle of a night: it stops, names them, and blames no document. Cards on
which torch cannot compute at all are refused before it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.engine.small_models import save_llama
from tests.nights import TASKS, documents
from tests.pretend_card.card_nights import CardNight


def a_night(folder: Path, **card: str) -> CardNight:
    model = {"id": str(save_llama(folder / "model", max_position_embeddings=2048)), "quantization": "none"}
    options = {"PRETEND_CARD": "8GiB", **{f"PRETEND_{name.upper()}": value for name, value in card.items()}}
    return CardNight(folder, documents(4, longest=6), TASKS[1:], extra={"model": model}, options=options)


def states(night: CardNight) -> dict[str, int]:
    with closing(sqlite3.connect(night.directory / "ledger.sqlite")) as connection:
        return dict(connection.execute("SELECT state || crashes, count(*) FROM work GROUP BY 1").fetchall())


@pytest.mark.full
@pytest.mark.parametrize(
    "launches",
    [pytest.param(40, id="while it loads"), pytest.param(400, id="at work")],
)
def test_a_lost_card_stops_the_night_and_blames_nobody(tmp_path: Path, launches: int) -> None:
    night = a_night(tmp_path, fail=f"after={launches},kind=lost")
    done = night.run()
    assert done.returncode == 75, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "Pretend card failed: CUDA error: an illegal memory access" in said
    assert states(night) == {"pending0": 4}


@pytest.mark.full
def test_a_vanished_card_is_not_replaced_by_the_processor(tmp_path: Path) -> None:
    night = a_night(tmp_path, fail=f"after=400,kind=gone,mark={tmp_path / 'gone'}")
    done = night.run()
    assert done.returncode == 75, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "the graphics card Pretend card is what the plan counts on, and none can be used any more" in said
    assert states(night) == {"pending0": 4}


def test_a_card_for_which_torch_has_no_kernels_is_refused_before_the_night(tmp_path: Path) -> None:
    """To come back to such a night would not help."""
    done = a_night(tmp_path, capability="6.1").run()
    assert done.returncode == 2, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "Pretend card has compute capability 6.1, for which PyTorch" in said
    assert "set model.device_map: cpu" in said
