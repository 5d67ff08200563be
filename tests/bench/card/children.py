"""Measurements in processes of their own: one that has imported torch cannot be given a card any more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.pretend_card.card_process import ROOT, card_environment

LONGEST_SECONDS = 3600


def on_a_card(module: str, *arguments: str, cards: str, folder: Path) -> Any:
    """What ``python -m module arguments`` prints as JSON on a dry card; files go under ``folder``. Raises
    RuntimeError with the end of what it said where it fails.
    """
    environment = card_environment(cards, dry="1", poison="0")
    ended = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**environment, "OVERNIGHT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{ended.stderr[-4000:]}")
    return json.loads(ended.stdout.splitlines()[-1])
