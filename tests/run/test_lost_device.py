"""A graphics card that fails, here by a script: one document may be the cause of it, so it is looked for; a
card that fails at whatever it is asked stops the night, and no document is blamed.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config import parse_config
from pipeline.engine.device_failure import is_device_lost, naming_the_device, require_cards
from pipeline.engine.hf_backend import TransformersBackend
from pipeline.errors import DeviceLost
from pipeline.records import Decode, Request, Score
from pipeline.run.device_proof import made_up
from pipeline.run.protocol import DeviceFailed, Loaded
from tests.nights import TASKS, ANight, documents
from tests.run.workers import PLAN, asked, heard, in_process, script

ILLEGAL = "CUDA error: an illegal memory access was encountered"


def a_night(folder: Path, *faults: dict[str, Any]) -> ANight:
    rows = documents(12, longest=3)
    rows[5]["text"] += " POISON"
    return ANight(folder, rows, [TASKS[1]], {"batch": 4, "faults": list(faults)})


def ledger(night: ANight, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(night.directory / "ledger.sqlite")) as connection:
        return connection.execute(query).fetchall()


def test_a_card_that_always_fails_stops_the_night_and_blames_nobody(tmp_path: Path) -> None:
    night = a_night(tmp_path, {"text": "", "do": "device"})
    done = night.run()
    assert done.returncode == 75, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert ILLEGAL in said
    assert "no document is blamed" in said
    assert ledger(night, "SELECT DISTINCT state, crashes FROM work") == [("pending", 0)]
    assert night.loads() == 3  # at documents, and twice at made-up prompts
    night.script = {}
    assert night.run().returncode == 0


def test_a_document_at_which_the_card_fails_is_found(tmp_path: Path) -> None:
    night = a_night(tmp_path, {"text": "POISON", "do": "device"})
    done = night.run()
    assert done.returncode == 3, done.stdout + done.stderr
    states = dict(ledger(night, "SELECT state, count(*) FROM work GROUP BY state"))
    assert states == {"done": 11, "quarantined": 1}
    report = json.loads((night.directory / "report.json").read_text(encoding="ascii"))
    assert ILLEGAL in json.dumps(report)


def test_a_card_that_failed_once_goes_on(tmp_path: Path) -> None:
    fault = {"text": "", "do": "device", "times": 1, "counter": str(tmp_path / "fired")}
    done = a_night(tmp_path / "night", fault).run()
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_card_proves_itself_before_it_counts_as_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, faults=[{"text": "bad", "do": "device"}])
    worker = in_process(tmp_path)
    worker.load(PLAN, asked("good"))
    assert isinstance(heard(worker, lambda told: bool(told) and isinstance(told[-1], Loaded))[-1], Loaded)
    assert worker.held.leased == {}
    other = in_process(tmp_path)
    other.load(PLAN, asked("bad"))
    heard(other, lambda told: any(isinstance(message, DeviceFailed) for message in told))
    assert other.held.state == "loading"
    assert ILLEGAL in (other.held.device_failure or "")


def test_made_up_prompts_are_as_long_and_ask_as_much_and_are_about_nothing() -> None:
    label = Score(((1, 2), (3,)))
    found = made_up([Request(7, (900,) * 50, Decode(20), 10, 40, 3), Request(8, (5,) * 9, label)])
    assert [(len(request.ids), request.ask) for request in found] == [(50, Decode(20)), (9, label)]
    assert {request.request_id for request in found} == {-1, -2}
    assert all(request.document_end == request.prefix_tokens == 0 for request in found)  # nothing is kept
    assert all(2 < token < 92 for request in found for token in request.ids)


def test_a_plan_for_a_card_is_not_obeyed_without_it(tmp_path: Path) -> None:
    config = parse_config(
        {
            "model": {"id": "smollm2-135m-instruct"},
            "source": {"path": "x"},
            "tasks": [{"name": "s", "kind": "summarize"}],
            "run": {"directory": str(tmp_path)},
        }
    )
    plan = replace(PLAN, cards=("NVIDIA GeForce RTX 4060", "NVIDIA GeForce RTX 4060"))
    with pytest.raises(DeviceLost, match=r"graphics cards NVIDIA GeForce RTX 4060 and .* none can be used"):
        TransformersBackend(config).open_engine(plan, tmp_path, lambda _: None)
    require_cards(())


LOST = [
    torch.AcceleratorError(ILLEGAL),
    torch.AcceleratorError("CUDA error: unspecified launch failure"),
    RuntimeError("No CUDA GPUs are available"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    DeviceLost("the graphics card failed"),
]
OTHERS = [
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    ValueError("No CUDA GPUs are available"),
]


@pytest.mark.parametrize("error", LOST, ids=repr)
def test_a_lost_device_is_named(error: Exception) -> None:
    assert is_device_lost(error)
    with pytest.raises(DeviceLost), naming_the_device(("A4000",)):
        raise error


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_what_memory_or_a_prompt_explains_is_no_lost_device(error: Exception) -> None:
    assert not is_device_lost(error)
    with pytest.raises(type(error)), naming_the_device(("A4000",)):
        raise error
