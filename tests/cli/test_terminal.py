"""What is printed, wherever it is printed to: no command ends because of what a terminal cannot show or a
pipe does not take, and ``--json`` is one object for every command, also where there is only an error to tell.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from pipeline import __version__
from pipeline.cli.main import app, main
from tests.nights import ANight

Called = Callable[..., tuple[object, str, str]]
# beyond Latin-1, beyond 16 bits, invisible
ODD = "fußball λ 𝑍 \u200b ok"


def commands(group: Any = None, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command of the program with the words that call it."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*above, name))
        else:
            yield (*above, name), command


# all but the one that becomes another program, and prints no facts
COMMANDS = {words: command for words, command in commands() if words != ("serve",)}


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> ANight:
    """A finished night over a document of many scripts."""
    finished = ANight(tmp_path_factory.mktemp("night"), [{"id": "d0", "text": ODD}, {"id": ODD, "text": "a"}])
    done = finished.run("-q")
    assert done.returncode == 0, done.stderr
    return finished


def fresh(night: ANight, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a Python of its own, whose streams are made from ``environment``."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "pipeline.cli.main", *arguments],
        capture_output=True,
        env={**night.environment, **environment},
        check=False,
    )


def test_what_a_terminal_cannot_show_is_escaped(night: ANight) -> None:
    done = fresh(night, "show", str(night.directory), "d0", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert rb"\u03bb \U0001d44d \u200b ok" in done.stdout


def test_a_run_leaves_private_files_and_no_last_words(night: ANight) -> None:
    files = [file for file in night.directory.rglob("*") if file.is_file()]
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in files} == {
        file.name: "0o600" for file in files
    }
    assert "Fatal Python error" not in (night.directory / "worker.log").read_text(encoding="utf-8")


def test_json_is_json_on_any_terminal(night: ANight) -> None:
    done = fresh(night, "show", str(night.directory), ODD, "--json", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["id"] == ODD
    recorded = told["documents"][0]["tasks"]["topic"]["result"]["recorded_at"]
    assert abs(datetime.datetime.fromisoformat(recorded) - datetime.datetime.now()) < datetime.timedelta(1)


def test_a_run_outlives_whoever_listened(night: ANight, tmp_path: Path) -> None:
    """Nobody reads its progress any more: the night goes on, and its exit code is its own."""
    alone = ANight(tmp_path, night.rows)
    process = alone.start("run", str(alone.config))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    try:
        assert process.wait(120) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert alone.status()["complete"]


def test_output_that_cannot_be_written_is_told(night: ANight) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pipeline.cli.main", "status", str(night.directory)],
            stdout=full,
            stderr=subprocess.PIPE,
            env=night.environment,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "overnight: standard output could not be written: No space left on device\n"


def test_closed_streams_are_no_accident(night: ANight) -> None:
    command = f'"{sys.executable}" -P -m pipeline.cli.main status "{night.directory}" >&- 2>&-'
    assert subprocess.run(["sh", "-c", command], env=night.environment, check=False).returncode in (0, 1)


_FIRST_WORDS = """
import json, sys
from pipeline.cli.main import main
from pipeline.system.standard_streams import ForgivingFile

def write(file, data, plain=ForgivingFile.write):
    if file.fileno() == 2 and not heard:
        heard.extend([bytes(data).decode(), sorted(sys.modules)])
    return plain(file, data)

heard = []
ForgivingFile.write = write
try:
    main()
finally:
    print(json.dumps(heard))
"""


def test_a_run_says_something_before_it_imports_what_takes_seconds(night: ANight) -> None:
    """Also to a pipe. Counted in modules, as seconds are the machine's."""
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_WORDS, "run", str(night.folder / "nowhere.yaml")],
        capture_output=True,
        text=True,
        env=night.environment,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    words, modules = json.loads(done.stdout)
    assert "nowhere.yaml" in words
    assert {"torch", "numpy", "sqlalchemy", "yaml", "rich.progress"} & set(modules) == set()
    assert {"pipeline.config", "pipeline.run.runner"} & set(modules) == set()


# ── --json and --version ────────────────────────────────────────────────────────────────────────────────────


def test_every_command_takes_json() -> None:
    without = [
        " ".join(words)
        for words, command in COMMANDS.items()
        if not any("--json" in option.opts for option in command.params)
    ]
    assert without == []
    assert len(COMMANDS) >= 18


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Called]:
    """Call the program in this process; (exit code, what it printed, what it said on standard error)."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["overnight", *words])
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, getattr(sys, name))  # puts back what the program replaces
        with pytest.raises(SystemExit) as end:
            main()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        monkeypatch.undo()
        return (end.value.code, *capfd.readouterr())

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_errors_are_one_object(words: tuple[str, ...], tmp_path: Path, called: Called) -> None:
    """Of the library that reads the arguments, and of the program."""
    code, out, err = called(*words, "--json", "--no-such-option")
    told = one_object(out)
    assert code == told["exit_code"] == 2
    assert "--no-such-option" in told["error"]
    assert "Usage" in err

    code, out, err = called(*words, *_needed(COMMANDS[words], tmp_path), "--json")
    told = one_object(out)
    assert code == told["exit_code"] == 2
    said = [line for line in err.splitlines() if not line[:8].replace(":", "").isdigit()]
    assert "\n".join(said) == f"overnight: {told['error']}"


def _needed(command: Any, folder: Path) -> list[str]:
    """Arguments and options that ``command`` cannot do without; they name nothing that is there."""
    words = [str(folder / "nowhere") for one in command.params if one.param_type_name == "argument"]
    for option in command.params:
        if option.param_type_name == "option" and option.required:
            words += [option.opts[0], str(folder / "out.csv")]
    return words


def test_a_fault_of_ours_is_one_object_too(
    called: Called, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["overnight", "retry", "somewhere", "--json"])
    monkeypatch.setattr("pipeline.cli.main.open_ledger", _broken)
    with pytest.raises(ZeroDivisionError):
        main()
    sys.stdout.flush()
    monkeypatch.undo()
    told = one_object(capfd.readouterr().out)
    assert told["exit_code"] == 1
    assert "ZeroDivisionError" in told["error"]


def _broken(*_: object) -> None:
    raise ZeroDivisionError


def test_a_stop_before_the_run_is_one_object(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.cli.main.open_ledger", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    code, out, _ = called("retry", "somewhere", "--json")
    assert code == one_object(out)["exit_code"] == 75


def test_what_stands_behind_two_dashes_is_no_option(called: Called) -> None:
    code, out, _ = called("status", "--", "--json")
    assert (code, out) == (2, "")


def test_the_version(called: Called) -> None:
    assert called("--version") == (0, f"overnight {__version__}\n", "")


def one_object(text: str) -> dict[str, Any]:
    """The one JSON object, on one line, that ``text`` is."""
    assert text.count("\n") == 1, text
    value = json.loads(text)
    assert isinstance(value, dict)
    return value
