"""Where the runs of a serving process are started, and where they work.

Python and Prefect both look for modules in the working directory first. A user's folder may hold a ``flows``
or a ``pipeline`` of its own, so runs are started where this program lies and go back to the user's folder
themselves, which paths in configurations are relative to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect.settings import PREFECT_HOME, temporary_settings

from pipeline.system.child_python import environment

_FOLDER = "OVERNIGHT_SERVED_IN"


@contextmanager
def standing_aside() -> Iterator[None]:
    """Leave the working directory to this process's runs, in their environment, and go where this program
    lies. Prefect's home stays where it is, also one that is relative to the folder left.
    """
    places = [str(Path(place).absolute()) for place in environment()["PYTHONPATH"].split(os.pathsep)]
    home = Path(PREFECT_HOME.value()).absolute()
    with temporary_settings({PREFECT_HOME: home}):  # of this process, and of those that it starts
        os.environ.update(
            {_FOLDER: str(Path.cwd()), "PYTHONPATH": os.pathsep.join(places), "PREFECT_HOME": str(home)}
        )
        os.chdir(Path(__file__).resolve().parents[1])
        yield


def go_back() -> None:
    """In a run: work in the folder that its serving process was started in."""
    if folder := os.environ.get(_FOLDER):
        os.chdir(folder)
