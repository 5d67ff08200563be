"""From the command to the model's first question: what is ours of it, beside the libraries' imports and the
loading of the weights.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.nights import TASKS, ANight, documents

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

_ROOT = Path(__file__).parents[2]
_TURNS = 3
_IMPORTS = """
import accelerate, msgspec, psutil, pydantic, rich, sqlalchemy, torch, transformers, typer, yaml
import transformers.modeling_utils
transformers.AutoConfig, transformers.AutoModelForCausalLM, transformers.AutoTokenizer
"""


def test_the_start_is_short(tmp_path: Path) -> None:
    """Medians of interleaved turns. The libraries are imported by two processes, at the same time: they count
    once.
    """
    ours = []
    for turn in range(_TURNS):
        importing = _imports()
        night = ANight(
            tmp_path / str(turn), documents(2), [TASKS[0]], extra={"model": {"id": "smollm2-135m-instruct"}}
        )
        started = time.time()
        done = night.run()
        assert done.returncode == 0, done.stderr
        first, loading = _first_answer(night)
        ours.append(first - started - importing - loading)
        print(
            f"\nfirst answer after {first - started:.1f} s: imports {importing:.1f}, loading "
            f"{loading:.1f}, the rest {ours[-1]:.1f}"
        )
    assert statistics.median(ours) <= 3


def _imports() -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True, env={**os.environ, "PYTHONPATH": str(_ROOT)})
    return time.monotonic() - started


def _first_answer(night: ANight) -> tuple[float, float]:
    """When the model began with the first answer, as the clock shows it, and how many seconds it took to
    load.
    """
    with closing(sqlite3.connect(night.directory / "ledger.sqlite")) as ledger:
        recorded, seconds = ledger.execute("SELECT min(recorded_at), sum(seconds) FROM results").fetchone()
        (facts,) = ledger.execute("SELECT facts FROM runs").fetchone()
    return recorded - seconds, json.loads(facts)["loaded"]["load_seconds"]
