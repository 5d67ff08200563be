from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from pipeline.stores.kv.entry import Segment
from pipeline.stores.kv.files import Files
from pipeline.stores.kv.writer import BackgroundWriter
from tests.stores.kv.caches import MODEL, entry, ids_of, is_right, opened, ranges
from tests.stores.kv.disks import FailingFiles, full_disk

OWNER = {"d": 1}


class Gate(Files):
    """A disk that waits to be let through."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def write(self, descriptor: int, data: memoryview, offset: int) -> None:
        assert self.open.wait(20)
        super().write(descriptor, data, offset)


def test_what_is_written_beside_the_run_is_there_after_flush(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        writer = BackgroundWriter(store)
        ids = ids_of(1, 300)
        futures = [
            writer.put(entry(ids[:end], "checkpoint", owner=OWNER), Segment(begin, ranges(ids[:end], begin)))
            for begin, end in ((0, 100), (100, 200), (200, 300))
        ]
        finished = writer.finish_checkpoint(MODEL, OWNER, become="document")
        assert writer.flush(20)
        assert all(future is not None and future.result(0).stored for future in futures)
        assert finished is not None
        assert finished.result(0)
        found = store.lookup(ids, MODEL)
        assert found is not None
        loaded = store.load(found)
        assert loaded is not None
        assert is_right(loaded, ids)
        assert writer.close(20)
        assert writer.put(entry(ids_of(2, 10)), Segment(0, ranges(ids_of(2, 10)))) is None
        assert writer.finish_checkpoint(MODEL, OWNER) is None
        assert writer.close(20)


def test_a_full_queue_skips_instead_of_waiting(tmp_path: Path) -> None:
    disk = Gate()
    with opened(tmp_path, files=disk) as store:
        writer = BackgroundWriter(store, queued=2)
        futures = [writer.put(entry(ids_of(n, 50)), Segment(0, ranges(ids_of(n, 50)))) for n in range(5)]
        assert [future is None for future in futures] == [False, False, True, True, True]
        assert store.counters.declined == {"skipped": 3}
        assert not writer.flush(0.05)
        disk.open.set()
        assert writer.flush(20)
        assert writer.put(entry(ids_of(9, 50)), Segment(0, ranges(ids_of(9, 50)))) is not None
        assert writer.close(20)
        assert store.counters.stored == 3


def test_the_queue_is_bounded_in_bytes(tmp_path: Path) -> None:
    disk = Gate()
    with opened(tmp_path, files=disk) as store:
        writer = BackgroundWriter(store, queued_bytes=20_000)
        assert writer.put(entry(ids_of(1, 50)), Segment(0, ranges(ids_of(1, 50)))) is not None  # 12,800 bytes
        assert writer.put(entry(ids_of(2, 50)), Segment(0, ranges(ids_of(2, 50)))) is None
        disk.open.set()
        assert writer.close(20)


def test_tensors_may_change_after_they_were_put(tmp_path: Path) -> None:
    disk = Gate()
    ids = ids_of(1, 100)
    with opened(tmp_path, files=disk) as store:
        writer = BackgroundWriter(store)
        storage = {name: torch.cat([tensor, tensor], dim=-2) for name, tensor in ranges(ids).items()}
        writer.put(entry(ids), Segment(0, {name: tensor[:, :100] for name, tensor in storage.items()}))
        for tensor in storage.values():
            tensor.zero_()
        disk.open.set()
        assert writer.close(20)
        found = store.lookup(ids, MODEL)
        assert found is not None
        assert is_right(store.load(found) or pytest.fail("missed"), ids)


def test_failures_are_counted_and_the_writer_goes_on(tmp_path: Path) -> None:
    disk = FailingFiles(None, full_disk(), for_good=False)
    with opened(tmp_path, files=disk) as store:
        writer = BackgroundWriter(store)
        disk.fails_at = disk.count + 3
        full = writer.put(entry(ids_of(1, 100)), Segment(0, ranges(ids_of(1, 100))))
        wrong = writer.put(entry(ids_of(2, 100)), Segment(0, ranges(ids_of(2, 99))))
        right = writer.put(entry(ids_of(3, 100)), Segment(0, ranges(ids_of(3, 100))))
        assert writer.close(20)
        assert full is not None
        assert full.result(0).reason == "disk_full"
        assert wrong is not None
        with pytest.raises(ValueError, match="is not"):
            wrong.result(0)
        assert right is not None
        assert right.result(0).stored
        assert store.counters.declined == {"disk_full": 1, "error": 1}
        assert store.counters.warnings == {"disk_full": 1, "error": 1}
