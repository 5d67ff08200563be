"""Where the runs of a serving process are started, and where they work.

Python and Prefect both look for modules in the working directory first. A user's folder may hold a ``flows``
or a ``pipeline`` of its own, so runs are started where this program lies and go back to the user's folder
themselves, which paths in configurations are relative to.
"""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.system.child_python import environment

_FOLDER = "OVERNIGHT_SERVED_IN"


def stand_aside() -> None:
    """Leave the working directory to this process's runs, in their environment, and go where this program
    lies.
    """
    places = [str(Path(place).absolute()) for place in environment()["PYTHONPATH"].split(os.pathsep)]
    os.environ.update({_FOLDER: str(Path.cwd()), "PYTHONPATH": os.pathsep.join(places)})
    os.chdir(Path(__file__).resolve().parents[1])


def go_back() -> None:
    """In a run: work in the folder that its serving process was started in."""
    if folder := os.environ.get(_FOLDER):
        os.chdir(folder)
