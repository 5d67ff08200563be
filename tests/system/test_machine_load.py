"""Others' load counts, our own does not, and little of it is nothing."""

from __future__ import annotations

import pytest

from pipeline.system import machine_load
from pipeline.system.machine_load import OthersLoad, beside


def test_others_count_and_we_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 100.0, "all": 5000.0, "own": 40.0}
    monkeypatch.setattr(machine_load.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(machine_load, "_busy_seconds", lambda: clock["all"])
    monkeypatch.setattr(machine_load, "_own_seconds", lambda: clock["own"])
    monkeypatch.setattr(machine_load, "_cores", lambda: 4)
    load = OthersLoad()
    clock.update(now=110.0, all=5030.0, own=60.0)
    assert load.busy_cores == pytest.approx(1)
    assert load.words == "while other programs used 1.0 of 4 cores"
    clock.update(all=5022.0)  # two seconds in ten are nothing
    assert (load.busy_cores, load.words, beside(0.0)) == (0, "", "")


def test_what_we_and_our_children_use_is_ours() -> None:
    import subprocess
    import sys

    before = machine_load._own_seconds()
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert machine_load._own_seconds() - before >= 0.45  # clocks tick
    assert machine_load._busy_seconds() > machine_load._own_seconds() > 0
