"""The flows as scripts, and the sentences of those who cannot start."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import serve
from flows.once import asked, once
from pipeline.tasks import registry
from tests.flows.serving import ROOT, a_project_of_its_own, done_count, wait_for
from tests.nights import ANight, documents, no_process_left
from tests.programs import FRESH, overnight

pytestmark = pytest.mark.timeout(400)
SERVE = ("-P", "-m", "pipeline.cli.main", "serve")
DEAD = "http://127.0.0.1:9/api"  # the discard port: nothing answers there
label, summarize = partial(once, "label"), partial(once, "summarize")


def start(night: ANight, *arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**night.environment, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = 240) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def a_night(folder: Path, count: int = 12, seconds: float = 0.05) -> ANight:
    return ANight(folder, documents(count, longest=6), script={"seconds": seconds})


def test_script_ends_with_a_sentence_and_no_noise(tmp_path: Path) -> None:
    night = a_night(tmp_path)
    script = str(ROOT / "flows" / "label.py")
    asked = (str(night.config), "--set", "engine.batch_rows=2", "--limit", "5")
    code, out, err = finish(start(night, script, *asked, cwd=a_project_of_its_own(tmp_path / "theirs")))
    assert code == 0, err
    assert out.startswith("The first 5 documents are done: topic 5 done")
    assert not re.search(r"ERROR|WARNING|CRITICAL|Traceback", err), err
    assert done_count(night, "topic") == 5
    assert no_process_left(night.directory)


def test_the_program_runs_in_a_folder_with_packages_of_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FRESH, "1")
    night = a_night(tmp_path)
    done = night.run(cwd=a_project_of_its_own(tmp_path / "theirs"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name the kind of task first, one of summarize, label"),
        (["extract", "x.yaml"], "name the kind"),
        (["broken", "x.yaml"], "it is broken"),
    ],
)
def test_a_flow_of_no_kind_is_a_sentence(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(registry._broken, "broken", "it is broken")
    assert asked(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.full
def test_ctrl_c_of_a_terminal_stops_the_script_within_seconds(tmp_path: Path) -> None:
    night = a_night(tmp_path, 60, 0.3)
    process = start(night, "flows/summarize.py", str(night.config))
    wait_for(lambda: done_count(night, "summary") >= 2)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = finish(process, 20)
    assert code == 75
    assert "Stopped early (signal SIGINT)" in out
    assert not re.search(r"ERROR|Traceback", err), err
    assert no_process_left(night.directory)


@pytest.mark.full
def test_exit_code_of_failed_documents(tmp_path: Path) -> None:
    night = a_night(tmp_path)
    night.script = {"faults": [{"text": "passengers", "do": "raise"}]}
    code, out, err = finish(start(night, "flows/label.py", str(night.config)))
    assert code == 3, err
    assert out.startswith("Finished; some documents failed")


# What is called, with what, and what it must say; CONFIG stands for a configuration that is in order.
MISTAKES: dict[str, tuple[Callable[[Sequence[str]], int], tuple[str, ...], str]] = {
    "no file": (label, ("nowhere.yaml",), "there is no configuration file nowhere.yaml"),
    "no document": (summarize, ("CONFIG", "--limit", "0"), "limit is 0"),
    "no task": (
        summarize,
        ("CONFIG", "--set", "tasks=[{name: a, kind: label, labels: [x, y]}]"),
        "no task of kind summarize",
    ),
    "no server": (serve.main, ("--config", "CONFIG"), "PREFECT_API_URL is not set"),
    "nothing to serve": (
        serve.main,
        ("--config", "nowhere.yaml"),
        "there is no configuration file nowhere.yaml",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_sentence(tmp_path: Path, mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    night = a_night(tmp_path)
    called, words, said = MISTAKES[mistake]
    assert called([str(night.config) if word == "CONFIG" else word for word in words]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1, err
    assert not out
    assert not night.directory.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("flows/label.py", "nowhere.yaml"), "there is no configuration file nowhere.yaml"),
        pytest.param((*SERVE, "CONFIG"), "PREFECT_API_URL is not set", marks=pytest.mark.full),
    ],
)
def test_a_process_says_nothing_else(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    """Neither what it imports nor how it ends adds to the sentence."""
    night = a_night(tmp_path)
    code, out, err = finish(
        start(night, *(str(night.config) if word == "CONFIG" else word for word in arguments))
    )
    assert code == 2
    assert said in err
    assert err.count("\n") == 1, err
    assert not out


def test_two_configurations_to_serve_are_refused() -> None:
    refused = overnight("serve", "a.yaml", "--config", "b.yaml", code=2)
    assert "two configurations are named, a.yaml and b.yaml" in refused.stderr


@pytest.mark.parametrize("called", [serve.main, label])
def test_unreachable_server_is_one_sentence(
    tmp_path: Path, called: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(a_night(tmp_path).config)
    with temporary_settings({PREFECT_API_URL: DEAD}):
        assert called(["--config", config] if called is serve.main else [config]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert f"the Prefect server at {DEAD} does not answer" in err
    assert "prefect server start" in err


@pytest.mark.full
def test_program_runs_with_the_decorators_removed(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "flows", project / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    removed = 0
    for file in (project / "flows").glob("*.py"):
        plain, count = re.subn(
            r"^ *@(flow|task)\(.*\)\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        removed += count
        file.write_text(plain, encoding="utf-8")
    assert removed == 4
    night = a_night(tmp_path / "night")
    call = f"from flows.kinds import label; print(label({str(night.config)!r}).message)"
    code, out, err = finish(
        start(night, "-c", call, cwd=project, PYTHONPATH=str(ROOT), PREFECT_API_URL=DEAD), 60
    )
    assert code == 0, err
    assert "All done: topic 12 done" in out
    assert done_count(night, "topic") == 12
