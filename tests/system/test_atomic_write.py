from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import StoppedEarly
from pipeline.system.atomic_write import replace_file


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_content_is_there_only_after_the_block(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_bytes(b"old")
    with replace_file(path) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert _names(tmp_path) == {"report.md"}


def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_bytes(b"old")

    def fail() -> None:
        with replace_file(path) as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"old"
    assert _names(tmp_path) == {"report.md"}


def test_bytes_then_name_then_folder_reach_the_disk_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, os.replace

    def fsync(number: int) -> None:
        place = Path(f"/proc/self/fd/{number}").readlink()
        calls.append(
            "sync folder" if place.is_dir() else f"sync {place.stat().st_size} bytes of {place.suffix}"
        )
        sync(number)

    def rename(source: Any, target: Any, **more: Any) -> None:
        calls.append(f"replace {Path(target).name} by {Path(source).suffix}")
        replace(source, target, **more)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    with replace_file(tmp_path / "out.jsonl") as stream:
        stream.write(b"12345")
    assert calls == ["sync 5 bytes of .part", "replace out.jsonl by .part", "sync folder"]


def test_private_files_are_for_the_user_only_and_replaced_ones_keep_their_rights(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for private, mode in ((True, 0o600), (False, 0o600), (False, 0o644), (True, 0o600)):
            if mode == 0o644:
                (tmp_path / "f").unlink()  # otherwise it keeps the rights that it has
            with replace_file(tmp_path / "f", private=private) as stream:
                stream.write(b"x")
                (part,) = tmp_path.glob(".*.part")
                assert stat.S_IMODE(part.stat().st_mode) == mode
            assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == mode
    finally:
        os.umask(before)


def test_a_link_goes_on_pointing_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    with replace_file(tmp_path / "link") as stream:
        stream.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_bytes() == b"x"


def test_longest_possible_name(tmp_path: Path) -> None:
    with replace_file(tmp_path / ("n" * 255)) as stream:
        stream.write(b"x")
    assert _names(tmp_path) == {"n" * 255}


def test_a_full_disk_stops_early(tmp_path: Path) -> None:
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if (
        shutil.which("mount") is None
        or os.geteuid() != 0
        or subprocess.run(command, check=False, capture_output=True).returncode != 0
    ):
        pytest.skip("a small file system can only be mounted by root")

    def fill() -> None:
        with replace_file(tmp_path / "f") as stream:
            stream.write(b"x" * 1_000_000)

    try:
        with pytest.raises(StoppedEarly, match="is full; free some space"):
            fill()
        assert _names(tmp_path) == set()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
