"""kill -9 while one long document is read, and while its text is written: it goes on, and its text is that of
an undisturbed run.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.engine.small_models import save_llama
from tests.programs import Program

ROOT = Path(__file__).parents[2]
DEMO = "smollm2-135m-instruct"


class Sizes(NamedTuple):
    model: str
    pause: float  # s; what a pass of a small model takes longer, for there is a checkpoint every 0.05 s
    tokens: int  # of the document
    chunk: int  # tokens of a pass
    new_tokens: int


WHOLE = Sizes(DEMO, 0, 7_000, 256, 64)


@pytest.fixture(scope="module", params=["tiny", pytest.param("demo", marks=pytest.mark.full)])
def sizes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_model_folder: Path
) -> Sizes:
    """A short document for a model; where a checkpoint begins and ends does not depend on the weights."""
    if request.param == "demo":
        return Sizes(DEMO, 0, 1_000, 128, 24)
    tiny = save_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=16_384)
    return Sizes(str(tiny), 0.06, 1_000, 128, 24)


def start(folder: Path, sizes: Sizes) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.crash.reading", str(folder), *map(str, sizes)]
    return Program(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )


def passes(folder: Path) -> list[tuple[str, int]]:
    path = folder / "progress"
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return [(kind, int(tokens)) for kind, tokens in map(str.split, lines)]


def to_the_end(folder: Path, sizes: Sizes) -> dict[str, Any]:
    process = start(folder, sizes)
    _, err = process.communicate(timeout=1500)
    assert process.returncode == 0, err
    result: dict[str, Any] = json.loads((folder / "text.json").read_text(encoding="utf-8"))
    assert result["error"] is None
    return result


def kill_after(folder: Path, sizes: Sizes, count: int) -> bool:
    """Kill the process once it has made ``count`` passes; False when it ended before."""
    process, before = start(folder, sizes), len(passes(folder))
    try:
        while len(passes(folder)) < before + count:
            if process.poll() is not None:
                return False
            time.sleep(0.002)
    finally:
        process.kill()
        process.communicate()
    return True


def check(folder: Path, sizes: Sizes, undisturbed: list[int], kills: int) -> None:
    result = to_the_end(folder, sizes)
    assert result["tokens"] == undisturbed
    assert result["facts"]["resumed"] == 1
    read = sum(count for kind, count in passes(folder) if kind == "read")
    repeated = read - sizes.tokens - 30
    # One interval here is one pass; a second may have been computed while the first was on its way to the
    # disk.
    assert 0 <= repeated <= 2 * sizes.chunk * kills
    others = sum(count for kind, count in passes(folder) if kind == "pass")
    question = max(count for kind, count in passes(folder) if kind == "pass")
    assert others <= (kills + 1) * question + 2 * sizes.new_tokens + 4 * kills


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, sizes: Sizes) -> list[int]:
    tokens: list[int] = to_the_end(tmp_path_factory.mktemp("undisturbed"), sizes)["tokens"]
    assert len(tokens) > 10
    return tokens


@pytest.mark.timeout(900)
def test_killed_in_reading_and_in_writing(tmp_path: Path, sizes: Sizes, undisturbed: list[int]) -> None:
    folder = tmp_path / "killed"
    assert kill_after(folder, sizes, 3)
    assert kill_after(folder, sizes, 12)
    check(folder, sizes, undisturbed, 2)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_twenty_kills_at_random(tmp_path: Path, demo_model_folder: Path) -> None:
    expected = to_the_end(tmp_path / "undisturbed", WHOLE)["tokens"]
    chance, kills = random.Random(6), 0
    while kills < 20:
        folder, here = tmp_path / f"killed{kills}", 0
        while kills < 20 and here < 3 and kill_after(folder, WHOLE, chance.randrange(2, 40)):
            kills, here = kills + 1, here + 1
        if not (folder / "text.json").exists():
            check(folder, WHOLE, expected, here)
