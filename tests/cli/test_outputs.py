"""Exports and reports that cannot be written: found before the model is loaded, exit 2 and a sentence; what
turns bad only at the end keeps nothing else from being written and names the command that writes it.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.config import load_config
from pipeline.errors import UsageError
from pipeline.results.export.layout import Output
from pipeline.run import closing
from pipeline.run.runner import run
from tests.nights import TASKS, ANight, documents
from tests.run.workers import script
from tests.small_disks import small_disk

LONG = "x" * 300 + ".jsonl"


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    with small_disk(place, "1m"):
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        yield


def a_night(folder: Path) -> ANight:
    return ANight(folder, documents(3, longest=3), [TASKS[0]])


def refused(night: ANight, *arguments: str, words: str) -> None:
    done = night.command(*arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("overnight: ")]
    assert words in line
    assert done.stdout == ""


def test_field_case_05(tmp_path: Path) -> None:
    """All places of the case, and others of its kinds: no model is loaded, and no file or folder is left."""
    night = a_night(tmp_path)
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "foreign.csv").write_text("name,salary\nAda,1\n")
    (tmp_path / "dangling.jsonl").symlink_to("/proc/nothere/out.jsonl")
    places = {
        str(tmp_path / "ro" / "out.jsonl"): "Read-only file system",
        "/proc/nothere/out.jsonl": "No such file or directory (/proc/nothere)",
        LONG: "File name too long",
        str(tmp_path / ("y" * 300) / "out.csv"): "File name too long",
        str(tmp_path / "folder.jsonl"): "it is a folder",
        str(tmp_path / "foreign.csv"): "is not an earlier export of this run",
        str(tmp_path / "dangling.jsonl"): "/proc/nothere",
    }
    good = tmp_path / "good.csv"
    with read_only(tmp_path / "ro"):
        for place, words in places.items():
            with pytest.raises(UsageError, match=re.escape(words)):
                run(load_config(night.config), outputs=[Output(good), Output(Path(place))])
        outputs = ("--output", str(good), "--output", LONG)
        refused(night, "run", str(night.config), *outputs, words="File name too long")
    assert not night.directory.exists()
    assert not good.exists()


def test_other_commands_find_it_before_their_work(tmp_path: Path) -> None:
    night = a_night(tmp_path)
    assert night.run().returncode == 0
    directory = str(night.directory)
    gold = tmp_path / "gold.csv"
    gold.write_text("id,label\nd0000,world\nd0001,sports\nd0002,world\n")
    commands = {
        ("export", directory, "-o", LONG): "File name too long",
        ("review", directory, "-o", "/proc/nothere/out.csv"): "/proc/nothere",
        ("sample", str(night.config), "-o", "/proc/nothere/out.csv"): "/proc/nothere",
        ("evaluate", directory, "--gold", str(gold), "--plots-to", "/proc/nothere"): "/proc/nothere",
        ("plan", str(night.config), "--plots", "/proc/nothere"): "/proc/nothere",
    }
    for arguments, words in commands.items():
        refused(night, *arguments, words=words)


@pytest.mark.parametrize("command", ["run", "calibrate"])
def test_a_report_that_cannot_be_written_is_found_first(tmp_path: Path, command: str) -> None:
    night = a_night(tmp_path)
    if command == "calibrate":
        assert night.run().returncode == 0
        (night.directory / "report.md").unlink()
    (night.directory / "report.md").mkdir(parents=True)
    loads = night.loads()
    arguments = [str(night.config)] if command == "run" else [str(night.directory), "--method", "none"]
    refused(night, command, *arguments, words="report.md: it is a folder")
    assert night.loads() == loads


def test_a_share_that_is_gone_at_the_end_costs_only_its_own_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch)
    night = a_night(tmp_path)
    outputs = [tmp_path / "a.csv", tmp_path / "share" / "b b.csv", tmp_path / "c.csv"]
    settle = closing.settle_answers

    def gone(*arguments: object) -> dict[str, str]:
        (tmp_path / "share").write_text("a file where the folder was")
        return settle(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(closing, "settle_answers", gone)
    result = run(load_config(night.config), outputs=[Output(path) for path in outputs])
    assert result.exit_code == 75
    assert [output.exported.rows for output in result.outputs] == [3, 0, 3]
    again = f"overnight export {night.directory} -o '{outputs[1]}' writes it"
    assert result.outputs[1].error is not None
    assert result.outputs[1].error.endswith(again)
    assert str(outputs[1]) in result.reason
    assert outputs[0].read_text() == outputs[2].read_text() != ""
    report = json.loads((night.directory / "report.json").read_text())
    assert (report["runs"][-1]["exit_code"], report["runs"][-1]["reason"]) == (75, result.reason)
    (tmp_path / "share").unlink()
    monkeypatch.setattr(closing, "settle_answers", settle)
    assert run(load_config(night.config), outputs=[Output(path) for path in outputs]).exit_code == 0
    assert outputs[1].read_text() == outputs[0].read_text()


def test_a_disk_that_fills_under_an_export_is_a_sentence(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(400, longest=2), [TASKS[0]])
    with small_disk(tmp_path / "disk", "32k") as disk:
        done = night.run("--output", str(disk.place / "out.jsonl"), "--output", str(tmp_path / "out.jsonl"))
        assert done.returncode == 75, done.stderr
        assert "Traceback" not in done.stderr
        assert f"overnight export {night.directory} -o {disk.place / 'out.jsonl'} writes it" in done.stdout
        assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 400
        assert not list(disk.place.iterdir())
        told = night.command("export", str(night.directory), "-o", str(disk.place / "out.jsonl"))
        assert told.returncode == 75
        assert "is full" in told.stderr
        disk.enlarge("4m")
        assert (
            night.command("export", str(night.directory), "-o", str(disk.place / "out.jsonl")).returncode == 0
        )


def test_a_report_that_cannot_be_written_at_the_end_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch)
    night = a_night(tmp_path)
    settle = closing.settle_answers

    def in_the_way(*arguments: object) -> dict[str, str]:
        (night.directory / "report.json").mkdir()
        return settle(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(closing, "settle_answers", in_the_way)
    result = run(load_config(night.config), outputs=[Output(tmp_path / "out.csv")])
    assert result.exit_code == 75
    assert "report.json could not be written: Is a directory" in result.reason
    assert result.outputs[0].exported.rows == 3
