"""Modules of this program run by a Python of their own: the command, and what its environment must say."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def command_of(module: str) -> list[str]:
    """Runs ``module``, which imports nothing from the folder that it is started in."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """This process's, with the place where this program was found: ``-P`` hides the folder it may lie in."""
    places = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
