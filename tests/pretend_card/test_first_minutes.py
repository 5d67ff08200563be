"""The script for a real card passes on a pretended one: its minutes are not for mistakes of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.first_minutes import models, results
from tests.pretend_card.card_process import card_environment
from tests.programs import ROOT

QUICK = ("machine", "attention_kernels", "streamed", "out_of_memory_while_loading")
SECTIONS = (
    "machine",
    "suspects",
    "attention_kernels",
    "decode_bf16",
    "decode_nf4",
    "streamed",
    "out_of_memory_while_loading",
)


def answers(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def faults(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers that are an error of the script rather than of the card."""
    return [answer for answer in found if answer.get("raised") or answer.get("ended")]


@pytest.mark.parametrize(
    "section", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in SECTIONS]
)
def test_every_section_has_answers(
    section: str, card: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.first_minutes import __main__, attention, decoding, machine, streaming, suspects

    for module in (results, models, attention, decoding, machine, streaming, suspects):
        monkeypatch.setattr(module, "TINY", True, raising=False)
        monkeypatch.setattr(module, "WORK", tmp_path / "work", raising=False)
    monkeypatch.setattr(results, "OUT", tmp_path)
    monkeypatch.setattr(attention, "HEADS", 4)
    monkeypatch.setattr(attention, "GROUPS", 2)
    monkeypatch.setattr(attention, "WIDTH", 16)
    monkeypatch.setenv("OVERNIGHT_CACHE", str(tmp_path / "cache"))
    __main__.ask(section)
    found = answers(tmp_path)
    assert len(found) >= 2
    assert faults(found) == []


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_the_whole_script(card: Any, tmp_path: Path) -> None:
    settings = {"OUT": str(tmp_path / "out"), "WORK": str(tmp_path / "work"), "TINY": "1", "SCALE": "5"}
    environment = {
        **card_environment(),
        **settings,
        "JOBS": "1",
        "NIGHT": "3",
        "FEW": "llama",
        "PY": "python",
    }
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for part in ("first", "second"):
        command = ["bash", str(ROOT / "tests" / "first_minutes" / "first_minutes.sh"), part]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    found = answers(tmp_path / "out")
    assert faults(found) == []
    ended = {answer["section"]: answer["ended"] for answer in found if "ended" in answer}
    assert ended == dict.fromkeys(
        ("equivalence", "engines", "gpu", "doctor", "plan", "night", "sanitizer"), 0
    )
    assert {answer["name"] for answer in found if answer["section"] == "done"} == set(SECTIONS)
    assert (tmp_path / "out" / "logs.tgz").exists()
