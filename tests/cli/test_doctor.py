"""The doctor: one sentence for each thing that would stop or slow the night, and none of them a traceback."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.doctor import examine
from pipeline.tasks import registry
from tests.cli.test_plan import a_model
from tests.nights import ANight, documents


def findings(night: ANight, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    done = night.command("doctor", str(night.config), *arguments, "--json")
    assert "Traceback" not in done.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        assert "\n" not in finding["message"]
        found.setdefault(finding["name"], []).append(finding)
    assert (done.returncode == 2) == any(
        each["level"] == "stop" for group in found.values() for each in group
    )
    return found


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))


def test_a_model_without_weights_works_and_nothing_is_said_of_its_memory(tmp_path: Path) -> None:
    (model,) = findings(ANight(tmp_path, documents(4)))["model"]
    assert model["level"] == "warn"
    assert "no weights; a run works" in model["message"]


def test_a_model_that_is_not_here_stops_the_night(tmp_path: Path) -> None:
    night = ANight(tmp_path, documents(4), extra={"model": {"id": str(a_model(tmp_path / "model"))}})
    (model,) = findings(night)["model"]
    assert model["level"] == "stop"
    assert "there is no safetensors file" in model["message"]


def test_a_missing_source_stops_the_night(tmp_path: Path) -> None:
    (source,) = findings(ANight(tmp_path, documents(4)), "--set", f"source.path={tmp_path}/gone.jsonl")[
        "source"
    ]
    assert source["level"] == "stop"
    assert "gone.jsonl" in source["message"]


@pytest.mark.parametrize("inside", ["", "deeper/still"])
def test_a_run_directory_that_cannot_be_one_stops_the_night(tmp_path: Path, inside: str) -> None:
    night = ANight(tmp_path, documents(1))
    place = night.source / inside
    found = findings(night, "--set", f"run.directory={place}")["run directory"]
    assert [finding["level"] for finding in found] == ["stop"]
    assert found[0]["message"] == f"{place} cannot be a run directory: a file is in the way"
    refused = night.run("--set", f"run.directory={place}")
    first, *said = refused.stderr.splitlines()
    assert first.endswith(f" reading {night.config}")
    assert (refused.returncode, said) == (2, [f"overnight: {found[0]['message']}"])


def test_time_is_told_and_a_deadline_that_is_too_near(tmp_path: Path, demo_model_folder: Path) -> None:
    extra = {
        "model": {
            "id": str(demo_model_folder),
            "quantization": "none",
            "dtype": "float32",
            "context_tokens": 512,
        }
    }
    night = ANight(tmp_path, documents(3000, longest=9), extra=extra)
    soon = (datetime.datetime.now() + datetime.timedelta(minutes=2)).strftime("%H:%M")
    found = findings(night, "--set", f"run.deadline='{soon}'")
    assert found["model"][0]["level"] == "ok"
    assert "it fits" in found["model"][0]["message"]
    *beside, late = found["time"]
    assert all("this plan was made" in finding["message"] for finding in beside)  # where the machine is busy
    assert late["level"] == "warn"
    assert "more than until run.deadline" in late["message"]


def test_an_installed_kind_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._broken, "extract", "the kind of task 'extract' cannot be loaded")
    (kind,) = [finding for finding in examine(None).findings if finding.name == "kinds"]
    assert (kind.level, kind.sentence) == ("warn", "the kind of task 'extract' cannot be loaded")
