from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.stores.kv.entry import Segment
from pipeline.stores.kv.io_speed import Speeds, worth_loading
from tests.stores.kv.caches import MODEL, entry, opened
from tests.stores.kv.disks import SlowFiles


def test_loading_pays_when_it_takes_less_time() -> None:
    assert worth_loading(92_000_000, 700e6, 2000, 360)  # a cold disk against a small model on two cores
    assert not worth_loading(92_000_000, 10e6, 2000, 360)
    assert not worth_loading(1000, 1000, 100, 100)
    assert worth_loading(999, 1000, 100, 100)
    assert not worth_loading(600, 1000, 100, 100, margin=2)
    assert worth_loading(10**12, None, 1, 1e9)
    assert worth_loading(10**12, 1.0, 1, None)
    assert not worth_loading(1, 0.0, 100, 100)
    assert worth_loading(1, 1.0, 100, 0.0)


def test_speeds_follow_what_is_measured() -> None:
    speeds = Speeds()
    assert speeds.read_bytes_per_second is None
    speeds.read(1000, 5.0)  # too small to tell
    assert speeds.read_bytes_per_second is None
    for _ in range(50):
        speeds.read(10**6, 0.001)
    assert speeds.read_bytes_per_second == pytest.approx(1e9)
    for _ in range(30):
        speeds.read(10**6, 0.1)
    assert speeds.read_bytes_per_second == pytest.approx(1e7, rel=0.05)
    assert speeds.write_bytes_per_second is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"read": 1}',
        b'{"read": {"size_bytes": -1, "seconds": 1}, "write": {"size_bytes": 1, "seconds": 1}}',
    ],
)
def test_a_strange_file_of_speeds_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "speeds.json").write_bytes(content)
    speeds = Speeds()
    speeds.recall(tmp_path / "speeds.json")
    speeds.recall(tmp_path / "none")
    assert speeds.read_bytes_per_second is None


def test_a_slow_disk_shows_and_is_remembered(tmp_path: Path) -> None:
    with opened(tmp_path, files=SlowFiles(20e6)) as store:
        store.put(entry(range(500)), Segment(0, {"L0.k": torch.randn(2, 500, 512)}))
        found = store.lookup(range(500), MODEL)
        assert found is not None
        assert store.load(found) is not None
        assert 4e6 < (store.speeds.read_bytes_per_second or 0) < 20e6
        assert 4e6 < (store.speeds.write_bytes_per_second or 0) < 20e6
        assert not worth_loading(
            found.bytes_to_read, store.speeds.read_bytes_per_second, found.tokens, 50_000
        )
        measured = store.speeds.read_bytes_per_second
    with opened(tmp_path) as store:
        assert store.speeds.read_bytes_per_second == pytest.approx(measured)
