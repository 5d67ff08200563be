"""Findings about this machine, and versions without imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.engine.model import environment_checks
from pipeline.engine.model.environment_checks import check_environment, four_bit_error
from pipeline.system.versions import STACK, stack_versions


def test_this_machine_can_run() -> None:
    found = {finding.name: finding for finding in check_environment()}
    assert len(found) == 7
    assert not [finding for finding in found.values() if finding.level == "stop"]
    assert "nf4 works on cpu" in found["bitsandbytes"].sentence
    assert all(finding.sentence and "\n" not in finding.sentence for finding in found.values())


def test_a_4_bit_product_is_really_made() -> None:
    assert 0 <= four_bit_error("cpu") < 0.02


def test_broken_4_bit_products_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_checks, "four_bit_error", lambda _: 0.4)
    assert environment_checks._bitsandbytes().level == "stop"

    def broken(_: str) -> float:
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setattr(environment_checks, "four_bit_error", broken)
    finding = environment_checks._bitsandbytes()
    assert finding.level == "stop"
    assert "no kernel image is available" in finding.sentence
    assert "quantization: none" in finding.sentence


def test_little_memory_and_a_driver_without_cuda_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_checks, "available_ram_bytes", lambda: 10**9)
    assert environment_checks._memory().level == "warn"
    monkeypatch.setattr(environment_checks, "_driver_version", lambda: "550.54")
    monkeypatch.setattr(environment_checks.torch.version, "cuda", None)
    assert "built without CUDA" in environment_checks._cuda().sentence


def test_versions_that_do_not_match_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_checks, "_required", lambda: ["torch>=99", "transformers>=5"])
    finding = environment_checks._versions()
    assert finding.level == "warn"
    assert "pip install 'torch>=99'" in finding.sentence


def test_versions_need_no_torch() -> None:
    code = (
        "import sys; from pipeline.system.versions import stack_versions; v = stack_versions(); "
        "print(v['torch'], 'torch' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    ).stdout
    assert shown.split()[1] == "False"
    assert set(stack_versions()) == {"overnight", "python", *STACK}
