"""Tables that the configuration names (``run.output``): every night writes them, whoever starts it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows import night as stages
from pipeline.cli.doctor import examine
from pipeline.config import load_config
from pipeline.errors import ConfigError
from pipeline.results.export.layout import Layout, Output
from pipeline.results.outputs import all_outputs
from tests.nights import TASKS, ANight
from tests.run.workers import script

ROWS = [{"id": f"d{n}", "text": f"text {n}.", "year": 2000 + n} for n in range(3)]


def a_night(folder: Path, output: Any) -> ANight:
    return ANight(folder, ROWS, [TASKS[0]], extra={"run": {"output": output}})


def test_a_night_of_a_flow_writes_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch)
    flat = {"path": str(tmp_path / "flat.csv"), "fields": "all", "flat": True}
    night = a_night(tmp_path, [str(tmp_path / "deep" / "t.parquet"), flat])
    facts = stages.work(TASKS[0]["kind"], str(night.config), [], None)
    assert facts["exit_code"] == 0
    assert pq.read_table(tmp_path / "deep" / "t.parquet").column("id").to_pylist() == ["d0", "d1", "d2"]
    with (tmp_path / "flat.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["year"] for row in csv.DictReader(stream)] == ["2000", "2001", "2002"]
    assert [table["rows"] for table in facts["exports"]] == [3, 3]
    assert str(tmp_path / "flat.csv") in facts["message"]


def test_the_command_line_adds_to_them_and_pending_rows_are_said(tmp_path: Path) -> None:
    night = a_night(tmp_path, str(tmp_path / "t.tsv"))
    more = tmp_path / "more.jsonl"
    done = night.run("--output", str(more), "--with", "year", "--set", "tasks.0.name=topic", "-q")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["year"] for line in more.read_text().splitlines()] == [2000, 2001, 2002]
    first = (tmp_path / "t.tsv").read_bytes()
    assert f"export: {tmp_path / 't.tsv'} (3 rows)" in done.stdout
    (tmp_path / "t.tsv").unlink()
    told = night.command("export", str(night.directory), cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "t.tsv").read_bytes() == first
    shown = night.command("export", str(night.directory), "-o", "-", "--format", "csv", "--with", "year")
    assert shown.stdout.splitlines()[0].endswith("file,line,year")
    assert "standard output (3 rows)" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--with", "year"), "name one with --output"),
        (("-o", "-", "--json"), "would both write to standard output"),
        (("-o", "x.csv", "--with", "a", "--all-fields"), "keep one of the two"),
        (("-o", "x.csv", "--format", "xls"), "there are jsonl, csv, tsv, parquet"),
        (("-o", "x.csv", "--with", "a,,b"), "a name is missing between two commas"),
    ],
)
def test_options_that_say_nothing_or_too_much_are_refused(
    arguments: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pipeline.cli import main

    monkeypatch.setattr("sys.argv", ["overnight", "export", "nowhere", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert words in said.out + said.err


def test_doctor_refuses_the_table_that_a_run_would_refuse(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("name,salary\nAda,1\n")
    night = a_night(tmp_path, str(tmp_path / "mine.csv"))
    (found,) = [finding for finding in examine(night.config).findings if finding.name == "output"]
    assert found.level == "stop"
    assert "mine.csv exists and is not an earlier export of this run" in found.sentence
    done = night.run("-q")
    assert (done.returncode, done.stderr) == (2, f"overnight: {found.sentence}\n")


def test_a_file_that_both_name_is_written_once_as_the_command_line_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    night = a_night(tmp_path, ["a.csv", "b.csv"])
    given = Output(tmp_path / "a.csv", Layout(flat=True))
    assert all_outputs(load_config(night.config), [given]) == [Output(Path("b.csv")), given]
    assert all_outputs(load_config(night.config, ["run.output=null"]), [given]) == [given]


def test_a_file_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    night = a_night(tmp_path, ["a.csv", {"path": "a.csv", "flat": True}])
    with pytest.raises(ConfigError, match=r"the file a\.csv is named twice"):
        load_config(night.config)
