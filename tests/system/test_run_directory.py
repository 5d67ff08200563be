"""The run directory: private, locked by one process at a time, refused where it cannot be."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import AlreadyRunning, UsageError
from pipeline.system.run_directory import RunDirectory


def test_it_is_private(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "a" / "b")
    with directory.locked():
        assert directory.path.stat().st_mode & 0o077 == 0


def test_a_second_holder_gets_a_sentence_with_the_process(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run").locked():
        with pytest.raises(AlreadyRunning, match=str(os.getpid())), RunDirectory(tmp_path / "run").locked():
            pass
        code = (
            "import sys; from pipeline.system.run_directory import RunDirectory; from pipeline.errors "
            "import AlreadyRunning\n"
            "try:\n with RunDirectory(sys.argv[1]).locked(): sys.exit(0)\nexcept AlreadyRunning: sys.exit(9)"
        )
        assert (
            subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False).returncode == 9
        )
    with RunDirectory(tmp_path / "run").locked():
        pass


def test_a_file_in_the_way_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UsageError, match="in the way"), RunDirectory(path).locked():
            pass


def test_the_log_is_kept(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    with directory.locked(), directory.logging():
        logging.getLogger("somewhere").info("a fact worth keeping")
    assert "a fact worth keeping" in (tmp_path / "run" / "overnight.log").read_text()
