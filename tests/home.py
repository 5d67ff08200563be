"""A home of the tests' own: nothing of the user's is read or written, whatever the user has configured,
measured or stored.

A session gets a folder for everything programs keep at home, gone afterwards. What costs long to make and is
the same every time (the converted demo model, the list of the system's fonts) is kept in ``.tests-cache/`` of
the checkout, which git ignores. Imports nothing that looks at the environment.
"""

from __future__ import annotations

import atexit
import os
import shutil
import site
import tempfile
from pathlib import Path

KEPT = Path(__file__).parents[1] / ".tests-cache"
HOME = "OVERNIGHT_TESTS_HOME"  # set for the processes of a session that run tests side by side
_WORKER = "PYTEST_XDIST_WORKER"
_FAMILIES = ("OVERNIGHT_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "PREFECT_", "XDG_")
_STAY = {  # these say what tests may do, not what a user has
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "OVERNIGHT_BENCH_DOCUMENTS",
    "OVERNIGHT_CORPORA",
    "OVERNIGHT_LARGE_HOME",
    "OVERNIGHT_TESTS_FRESH",
}


def move_in() -> Path:
    """Point this process and those it starts to the session's home; called before anything of the pipeline
    is imported. The folder.
    """
    if os.environ.get(_WORKER) and HOME in os.environ:
        home = Path(os.environ[HOME])
    else:
        home = Path(tempfile.mkdtemp(prefix="overnight-tests-"))
        atexit.register(_remove, home, os.getpid())
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())  # installed packages, found from the old home
    for name in list(os.environ):
        if name.startswith(_FAMILIES) and name not in _STAY:
            del os.environ[name]
    os.environ.update(places(home))
    _link_what_is_kept(Path(os.environ["OVERNIGHT_CACHE"]))
    return home


def places(home: Path) -> dict[str, str]:
    """The variables that lead into ``home``. Each process that runs tests has an $OVERNIGHT_CACHE of its own,
    so that none finds there what another one's tests have measured.
    """
    return {
        HOME: str(home),
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_STATE_HOME": str(home / "state"),
        "HF_HOME": str(home / "huggingface"),
        "PREFECT_HOME": str(home / "prefect"),
        "OVERNIGHT_CACHE": str(home / f"overnight-{os.environ.get(_WORKER, 'main')}"),
        "MPLCONFIGDIR": str(KEPT / "matplotlib"),
    }


def _link_what_is_kept(cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    (KEPT / "models").mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (cache / "models").exists():
        (cache / "models").symlink_to(KEPT / "models", target_is_directory=True)


def _remove(home: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a process that was forked
        shutil.rmtree(home, ignore_errors=True)
