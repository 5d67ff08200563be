"""The command line as a user meets it: instant help, one sentence for each mistake, one JSON object for
``--json``, exit codes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.nights import ANight, documents, no_process_left
from tests.tiers import quick

COMMANDS = ("run", "plan", "status", "export", "report", "retry", "show", "reproduce", "doctor")
QUALITY_COMMANDS = (
    "evaluate",
    "review",
    "sample",
)  # what they do is in tests/results/test_evaluate.py and test_review.py
LIGHT = {
    "pipeline",
    "pipeline.cli",
    "pipeline.cli.main",
    "pipeline.cli.cache",
    "pipeline.cli.calibration",
    "pipeline.cli.commands",
    "pipeline.cli.plan",
    "pipeline.cli.quality",
    "pipeline.cli.serve",
    "pipeline.cli.tables",
    "pipeline.cli.watch",
    "pipeline.cli.common",
    "pipeline.errors",
    "pipeline.system.child_python",
    "pipeline.system",
    "pipeline.system.standard_streams",
}
# Typer itself loads pydantic; that none of our own models is built is seen by pipeline.config.
HEAVY = {
    "torch",
    "transformers",
    "accelerate",
    "bitsandbytes",
    "datasets",
    "prefect",
    "pyarrow",
    "numpy",
    "sqlalchemy",
    "yaml",
}
STATES = {"pending", "running", "done", "failed", "quarantined", "skipped"}
ROOT = Path(__file__).parents[2]

_HELP = """
import json, sys
from pipeline.cli.main import main
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> ANight:
    """A finished night, which the tests of this file only look at."""
    finished = ANight(tmp_path_factory.mktemp("night"), documents(6, longest=6))
    done = finished.run()
    assert done.returncode == 0, done.stderr
    return finished


# ── help ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "arguments",
    quick(
        [("--help",), *((name, "--help") for name in COMMANDS + QUALITY_COMMANDS)],
        ("--help",),
        ("run", "--help"),
        ("plan", "--help"),
    ),
    ids=" ".join,
)
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HELP, *arguments], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "Usage" in done.stdout
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert {"typer", "pipeline.cli.main"} <= loaded
    assert not HEAVY & loaded
    assert {name for name in loaded if name.startswith("pipeline")} == LIGHT


def test_the_program_names_its_commands_and_exit_codes(night: ANight) -> None:
    done = night.command("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in COMMANDS)
    assert "75 the same command has work left" in " ".join(done.stdout.split())


@pytest.mark.bench
def test_help_is_instant(night: ANight, record_property: Callable[[str, object], None]) -> None:
    seconds = []
    for _ in range(5):
        started = time.monotonic()
        night.command("run", "--help")
        seconds.append(time.monotonic() - started)
    record_property("help_seconds", min(seconds))
    assert min(seconds) < 0.5


# ── mistakes ────────────────────────────────────────────────────────────────────────────────────────────────

MISTAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # what: (arguments, words in the sentence); {names} stand for paths of the night
    "missing configuration": (
        ("run", "{folder}/nowhere.yaml"),
        ("there is no configuration file", "nowhere.yaml"),
    ),
    "configuration is a folder": (("plan", "{folder}"), ("is a folder",)),
    "retired key": (
        ("run", "{config}", "--set", "engine.decoder=transformers"),
        ("engine.decoder", "there is only one decoder now; delete it"),
    ),
    "unknown key": (
        ("run", "{config}", "--set", "model.quantisation=nf4"),
        ("model.quantisation", "unknown key"),
    ),
    "wrong value": (("plan", "{config}", "--set", "model.quantization=int3"), ("model.quantization", "int3")),
    "override without a value": (
        ("run", "{config}", "--set", "model.dtype"),
        ("--set 'model.dtype'", "a.b=c"),
    ),
    "override of no task": (("run", "{config}", "--set", "tasks.topics.multi=true"), ("topics", "no item")),
    "no task of the kind": (
        ("run", "{config}", "--kind", "extract", "--set", "run.directory={folder}/kind"),
        ("extract", "topic (label)"),
    ),
    "missing source": (
        (
            "run",
            "{config}",
            "--set",
            "source.path={folder}/gone.jsonl",
            "--set",
            "run.directory={folder}/missing",
        ),
        ("gone.jsonl", "source.path"),
    ),
    "source of an unknown kind": (
        (
            "run",
            "{config}",
            "--set",
            "source.path={folder}/config.yaml",
            "--set",
            "run.directory={folder}/kindless",
        ),
        ("config.yaml", ".jsonl"),
    ),
    "run directory is a file": (
        ("run", "{config}", "--set", "run.directory={config}"),
        ("config.yaml", "a file is in the way"),
    ),
    "run exports to an input": (
        ("run", "{config}", "--output", "{source}"),
        ("in.jsonl", "it is an input of the run"),
    ),
    "export to an input": (
        ("export", "{run}", "--output", "{source}", "--force"),
        ("in.jsonl", "it is an input of the run"),
    ),
    "export over a foreign file": (
        ("export", "{run}", "--output", "{folder}/foreign.csv"),
        ("foreign.csv", "--force"),
    ),
    "unknown suffix": (("export", "{run}", "--output", "{folder}/out.xlsx"), ("out.xlsx", ".parquet")),
    "unknown suffix before the night": (
        ("run", "{config}", "--output", "{folder}/out.xlsx"),
        ("out.xlsx", ".parquet"),
    ),
    "unknown document": (("show", "{run}", "nobody"), ("no document", "'nobody'")),
    "reproducing an unknown document": (("reproduce", "{run}", "nobody"), ("no document", "'nobody'")),
    "status of no run directory": (("status", "{folder}"), ("is not a run directory",)),
    "report of no run directory": (("report", "{folder}"), ("is not a run directory",)),
    "export of no run directory": (
        ("export", "{folder}", "--output", "{folder}/out.csv"),
        ("is not a run directory",),
    ),
    "tables of no run directory": (("export", "{folder}"), ("is not a run directory",)),
    "retry of no run directory": (("retry", "{folder}"), ("is not a run directory",)),
    "retry of an unknown task": (
        ("retry", "{run}", "--task", "sentiment"),
        ("'sentiment'", "summary, topic"),
    ),
    "a changed task": (
        ("run", "{config}", "--set", "tasks.topic.multi=true"),
        ("task 'topic'", "multi: false → true", "--fork"),
    ),
}


def spoken(err: str) -> str:
    """Standard error without the lines of progress; checks that it is a message and not an accident."""
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if not line[:8].replace(":", "").isdigit()]
    assert lines[0].startswith("overnight: "), err
    assert sum(line.startswith("overnight: ") for line in lines) == 1
    return "\n".join(lines)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_a_sentence(night: ANight, mistake: str) -> None:
    foreign = night.folder / "foreign.csv"
    foreign.write_text("name,salary\nAda,1\n")
    places = {"folder": night.folder, "config": night.config, "source": night.source, "run": night.directory}
    arguments, words = MISTAKES[mistake]
    kept = {path: path.read_bytes() for path in (foreign, night.source, night.config)}
    done = night.command(*(argument.format(**places) for argument in arguments))
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    message = spoken(done.stderr)
    for word in words:
        assert word in message
    assert {path: path.read_bytes() for path in kept} == kept
    assert night.status()["complete"]


@pytest.mark.parametrize(
    "arguments",
    [("frobnicate",), ("run",), ("run", "x.yaml", "--limit", "none"), ("export",)],
    ids=" ".join,
)
def test_wrong_arguments_are_explained(night: ANight, arguments: tuple[str, ...]) -> None:
    done = night.command(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Usage" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("model", ["nobody/has-this-model", "/no/such/folder", "{folder}"])
def test_a_wrong_model_gets_a_sentence(tmp_path: Path, model: str) -> None:
    night = ANight(tmp_path, documents(1), extra={"model": {"id": model.format(folder=tmp_path)}})
    done = night.run()
    assert done.returncode == 2, done.stderr
    assert "model.id" in spoken(done.stderr)
    assert done.stdout == ""


# ── --json ──────────────────────────────────────────────────────────────────────────────────────────────────


def one_object(text: str) -> dict[str, Any]:
    """The one JSON object, on one line, that ``text`` is."""
    assert text.count("\n") == 1
    value = json.loads(text)
    assert isinstance(value, dict)
    return value


JSON_COMMANDS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "run": (("run", "{config}"), {"exit_code", "reason", "run_directory", "report", "status", "exports"}),
    "plan": (("plan", "{config}"), {"plan", "tasks", "notes"}),
    "status": (("status", "{run}"), {"documents", "rejected", "duplicates", "complete", "tasks", "run"}),
    "export": (("export", "{run}", "--output", "{folder}/out.parquet"), {"output", "rows", "exports"}),
    "report": (("report", "{run}"), {"inputs", "tasks", "runs", "rejects"}),
    "retry": (("retry", "{run}"), {"retried"}),
    "show": (("show", "{run}", "d0001"), {"id", "documents"}),
    "reproduce": (
        ("reproduce", "{run}", "d0001"),
        {"exit_code", "reason", "run_directory", "report", "status"},
    ),
    "doctor": (("doctor", "{config}"), {"findings"}),
}


def test_the_table_names_every_command() -> None:
    assert tuple(JSON_COMMANDS) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_one_object_and_nothing_else(night: ANight, name: str) -> None:
    arguments, keys = JSON_COMMANDS[name]
    places = {"folder": night.folder, "config": night.config, "run": night.directory}
    done = night.command(*(argument.format(**places) for argument in arguments), "--json")
    assert done.returncode == 0, done.stderr
    assert keys <= set(one_object(done.stdout))


@pytest.mark.parametrize("name", COMMANDS)
def test_without_json_it_is_words(night: ANight, name: str) -> None:
    arguments, _ = JSON_COMMANDS[name]
    places = {"folder": night.folder, "config": night.config, "run": night.directory}
    done = night.command(*(argument.format(**places) for argument in arguments))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not done.stdout.startswith("{")


def test_the_status_has_its_shape(night: ANight) -> None:
    counts = night.status()
    assert set(counts) == {"documents", "rejected", "duplicates", "complete", "tasks", "run"}
    assert set(counts["run"]) == {"alive", "cut_off", "phase", "progress", "held_by", "last"}
    assert (counts["run"]["alive"], counts["run"]["last"]["reason"]) == (False, "done")
    assert (counts["documents"], counts["rejected"], counts["duplicates"], counts["complete"]) == (
        6,
        0,
        0,
        True,
    )
    assert set(counts["tasks"]) == {"topic", "summary"}
    for states in counts["tasks"].values():
        assert set(states) == STATES
        assert states["done"] == sum(states.values()) == 6


# ── exit codes ──────────────────────────────────────────────────────────────────────────────────────────────


def test_failed_documents_end_in_3(tmp_path: Path) -> None:
    rows = [
        *documents(3, longest=4),
        {"id": "odd", "text": "An ODD one."},
        {"id": "no text"},
        {"id": "void", "text": " "},
    ]
    night = ANight(tmp_path, rows, script={"faults": [{"text": "ODD", "do": "raise"}]})
    done = night.run("--json", "--output", str(tmp_path / "out.jsonl"))
    assert done.returncode == 3
    facts = one_object(done.stdout)
    assert (facts["exit_code"], facts["exports"][0]["rows"]) == (3, 5)
    counts = facts["status"]
    assert (counts["documents"], counts["rejected"], counts["complete"]) == (5, 1, True)
    for states in counts["tasks"].values():
        assert (states["done"], states["failed"], states["skipped"]) == (3, 1, 1)
    again = night.run()
    assert again.returncode == 3
    assert "some documents failed" in again.stdout
    assert "Traceback" not in again.stderr


def test_a_stopped_run_ends_in_75_and_still_prints_one_object(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(5, longest=4), script={"load_seconds": 120})
    process = night.start("run", str(night.config), "--json")
    try:
        _wait_until(lambda: night.loads() > 0)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 75, err
    facts = one_object(out)
    assert facts["exit_code"] == 75
    assert facts["status"]["complete"] is False
    assert {states["pending"] for states in facts["status"]["tasks"].values()} == {5}
    assert "Traceback" not in err
    assert no_process_left(tmp_path)


def test_no_reader_is_no_traceback(night: ANight) -> None:
    process = night.start("report", str(night.directory))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 1
    assert "Traceback" not in err


def _wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
