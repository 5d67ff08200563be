"""Whether a file can be written is tried: every reason against it is a sentence, and nothing is left
behind.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pipeline.errors import StoppedEarly, UsageError
from pipeline.system.writable import check_writable, written_later
from tests.small_disks import small_disk


def everything_below(folder: Path) -> list[str]:
    return sorted(str(place.relative_to(folder)) for place in folder.rglob("*"))


@pytest.mark.parametrize("name", ["new.jsonl", "made/for/it/new.jsonl", "there.jsonl", "link.jsonl"])
def test_a_place_that_takes_a_file_is_left_as_it_was(tmp_path: Path, name: str) -> None:
    (tmp_path / "there.jsonl").write_text("kept")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "nowhere" / "yet.jsonl")
    before = everything_below(tmp_path)
    check_writable(tmp_path / name)
    assert everything_below(tmp_path) == before
    assert (tmp_path / "there.jsonl").read_text() == "kept"


def refused(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to a device").symlink_to("/dev/null")
    (tmp_path / "to proc").symlink_to("/proc/nothere/out.jsonl")
    return {
        "it is a folder": tmp_path / "folder",
        f"{tmp_path / 'file'} is a file": tmp_path / "file" / "out.jsonl",
        "File name too long": tmp_path / ("x" * 300),
        "File name too long (": tmp_path / ("y" * 300) / "out.jsonl",
        "(/proc/nothere)": Path("/proc/nothere/out.jsonl"),
        "/proc/nothere": tmp_path / "to proc",
        "not a file": tmp_path / "pipe",
        "a device": tmp_path / "to a device",
        "null": Path("a\0b"),
    }


def test_a_place_that_takes_none_gets_a_sentence(tmp_path: Path) -> None:
    for words, place in refused(tmp_path).items():
        before = everything_below(tmp_path)
        with pytest.raises(UsageError) as told:
            check_writable(place)
        assert str(told.value).startswith(f"cannot write {place}: "), told.value
        assert words in str(told.value)
        assert str(told.value).endswith("; choose another place")
        assert everything_below(tmp_path) == before
    assert Path("/dev/null").is_char_device()


def test_a_disk_that_is_full_can_be_mended(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        check_writable(disk.place / "out.jsonl")
        disk.fill()
        with pytest.raises(StoppedEarly, match="is full; free some space"):
            check_writable(disk.place / "out.jsonl")
        assert everything_below(disk.place) == ["filler"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ESTALE, "Stale file handle", "/mnt/share/out"), "Stale file handle (/mnt/share/out)"),
        (
            StoppedEarly("the disk that holds /mnt is full; free some space"),
            "the disk that holds /mnt is full",
        ),
    ],
)
def test_what_fails_later_names_the_command_that_writes_it(error: Exception, words: str) -> None:
    with (
        pytest.raises(StoppedEarly) as told,
        written_later(Path("out.jsonl"), "overnight export r -o out.jsonl"),
    ):
        raise error
    assert str(told.value) == (
        f"out.jsonl could not be written: {words}; once that is mended, overnight export r -o out.jsonl "
        f"writes it"
    )
