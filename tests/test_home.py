"""A test session has a home of its own: what a user has measured, configured or stored is neither read nor
changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.home import HOME, KEPT, places
from tests.programs import FRESH

ROOT = Path(__file__).parents[1]
# Tests that look for the converted demo model, for measured speeds and for Prefect's settings.
SUBSET = (
    "tests/engine/model/test_demo_model.py::test_the_folder_is_a_plain_model",
    "tests/flows/test_scripts.py::test_mistakes_are_one_sentence[no server]",
    "tests/test_home.py::test_this_session_is_at_home",
)
USERS = {  # what stands in the user's home: each would change or break something
    ".cache/overnight/hardware.json": '{"format": 2, "machines": []}',
    ".cache/overnight/speeds/0.json": "{}",
    ".cache/overnight/models/smollm2-135m-instruct-0ba7c6f9687296f4/config.json": "{",
    ".cache/huggingface/token": "secret",
    ".config/matplotlib/matplotlibrc": "backend: none of these",
    ".prefect/profiles.toml": 'active = "gone"\n[profiles.gone]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n',
}


def test_this_session_is_at_home() -> None:
    home = Path(os.environ[HOME])
    for name, place in places(home).items():
        assert os.environ[name] == place
        assert Path(place).is_relative_to(home) or Path(place).is_relative_to(KEPT)
    assert not [name for name in os.environ if name in ("HF_TOKEN", "HF_HUB_CACHE", "PREFECT_PROFILE")]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def a_session(user: Path, report: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Pytest as a user starts it who lives in ``user``."""
    mine = {name: value for name, value in os.environ.items() if name not in {*places(user), HOME}}
    environment = {
        **{name: value for name, value in mine.items() if not name.startswith(("PYTEST_", "OVERNIGHT_"))},
        "HOME": str(user),
        "OVERNIGHT_CACHE": str(user / ".cache" / "overnight"),
        "PREFECT_PROFILE": "gone",
        "HF_TOKEN": "secret",
        "PYTHONPATH": str(ROOT),
        "TRAPS_FOLDER": str(user),
        "TRAPS_REPORT": str(report),
    }
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250
    )


def test_a_session_touches_nothing_of_the_users(tmp_path: Path) -> None:
    user, report = tmp_path / "user", tmp_path / "touched"
    for name, text in USERS.items():
        (user / name).parent.mkdir(parents=True, exist_ok=True)
        (user / name).write_text(text)
    before = contents(user)
    done = a_session(user, report, "-p", "tests.traps", *SUBSET)
    assert done.returncode == 0, done.stdout
    assert report.read_text() == ""
    assert contents(user) == before


def test_the_traps_would_notice(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    peek = tmp_path / "test_peek.py"
    peek.write_text(
        f"from pathlib import Path\ndef test_it():\n    list(Path({str(tmp_path / 'user')!r}).iterdir())\n"
    )
    report = tmp_path / "touched"
    done = a_session(tmp_path / "user", report, "-p", "tests.traps", "--rootdir", str(tmp_path), str(peek))
    assert done.returncode == 0, done.stdout
    assert str(tmp_path / "user") in report.read_text()


def test_what_says_what_tests_may_do_stays() -> None:
    """And what a user has goes."""
    benches = ("OVERNIGHT_BENCH_DOCUMENTS", "OVERNIGHT_CORPORA", "OVERNIGHT_LARGE_HOME")
    told = dict.fromkeys((FRESH, "HF_HUB_OFFLINE", *benches), "1")
    environment = {**os.environ, **told, "HF_TOKEN": "secret", "OVERNIGHT_BACKEND": "mine"}
    script = "import json, os; from tests.home import move_in; move_in(); print(json.dumps(dict(os.environ)))"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert {name: found.get(name) for name in told} == told
    assert not {"HF_TOKEN", "OVERNIGHT_BACKEND"} & set(found)
