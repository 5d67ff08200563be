"""Imports point one way, as pyproject.toml says."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_FOUND = """
import importlib.util, json, site, sys
sys.path += sys.argv[2:]
site.addsitedir(sys.argv[1])
names = ("pipeline", "flows", "tests", "configs", "data", "pipeline.cli.main")
print(json.dumps([name for name in names if importlib.util.find_spec(name)]))
"""


def test_the_contracts_hold() -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-cache",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    assert f"{len(contracts['contracts'])} kept, 0 broken" in done.stdout


@pytest.mark.parametrize("version", ["editable", "standard"])
def test_an_installation_shows_the_packages_and_nothing_that_lies_beside_them(
    version: str, tmp_path: Path
) -> None:
    wheels = pytest.importorskip("hatchling.builders.wheel")
    editables = pytest.importorskip("editables")
    built = next(wheels.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=[version]))
    with zipfile.ZipFile(built) as wheel:
        wheel.extractall(tmp_path / "site")
    places = [str(tmp_path / "site"), str(Path(editables.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _FOUND, *places], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == ["pipeline", "flows", "pipeline.cli.main"]
