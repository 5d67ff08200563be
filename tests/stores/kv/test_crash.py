"""Power cuts at every step, killed processes, two processes at once: the old state or the new, nothing else,
and nothing left over.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.stores.kv import admin
from pipeline.stores.kv.files import used_bytes
from pipeline.stores.kv.store import KvStore
from tests.stores.kv.caches import MODEL, ids_of, is_right, opened, put
from tests.stores.kv.disks import FailingFiles, PowerCut

IDS = ids_of(1, 200)
OWNER = {"d": 1}
ROOT = Path(__file__).parents[3]


def _new(store: KvStore) -> Any:
    return put(store, ids_of(5, 100))


def _grow(store: KvStore) -> Any:
    return put(store, IDS, "checkpoint", begin=100, owner=OWNER, with_states=True)


def _replace(store: KvStore) -> Any:
    return put(store, ids_of(6, 90), "checkpoint", owner=OWNER)


def _promote(store: KvStore) -> Any:
    return store.finish_checkpoint(MODEL, OWNER, become="document")


def _drop(store: KvStore) -> Any:
    return store.finish_checkpoint(MODEL, OWNER)


def held(folder: Path) -> set[tuple[str, int]]:
    return {(one.kind, one.tokens) for one in admin.ls(folder).entries}


@pytest.mark.parametrize("change", [_new, _grow, _replace, _promote, _drop])
def test_a_power_cut_at_any_step_leaves_the_old_or_the_new(
    tmp_path: Path, change: Callable[[KvStore], Any]
) -> None:
    seen: list[int] = []
    at = 0
    while not seen or len(seen) == at:  # until a run ends before its power cut
        at += 1
        folder = tmp_path / str(at)
        disk = FailingFiles(None, PowerCut(), for_good=True)
        store = opened(folder, files=disk)
        put(store, IDS[:100], "checkpoint", owner=OWNER, with_states=True)
        before = held(folder)
        disk.fails_at = disk.count + at
        try:
            change(store)
        except PowerCut:
            seen.append(at)
        disk.fails_at = None
        store._place._alive.release()  # as the system does when a process ends
        with opened(folder) as after:
            now = held(folder)
            assert before <= now or now in (
                {("checkpoint", 200)},
                {("checkpoint", 90)},
                {("document", 100)},
                set(),
            ), at
            for ids in (IDS, ids_of(5, 100), ids_of(6, 90)):
                found = after.lookup(ids, MODEL)
                assert found is None or is_right(after.load(found) or pytest.fail("missed"), ids)
            assert after.counters.warnings["damaged"] == 0
            assert not any(
                path.name != after._place._mine.name for path in (folder / "v1" / "staging").iterdir()
            )
            counting = sum(len(one.manifest.files) + 1 for one in after._place.index.held.values())
            assert sum(path.is_file() for path in (folder / "v1" / "entries").rglob("*")) == counting
            assert after.used_bytes() == used_bytes(folder)
    assert len(seen) >= 2


WRITER = """
import sys
from pathlib import Path
from tests.stores.kv.caches import MODEL, ids_of, opened, put
with opened(Path(sys.argv[1]), quota_bytes=int(sys.argv[3])) as store:
    print("open", flush=True)
    for round in range(10_000):
        number = int(sys.argv[2]) * 100 + round % 40
        ids = ids_of(number, 900)
        put(store, ids[:700], "checkpoint", owner={"d": number}, with_states=True)
        put(store, ids, "checkpoint", begin=700, owner={"d": number}, with_states=True)
        store.finish_checkpoint(MODEL, {"d": number}, become="document")
        put(store, ids_of(number + 50, 300), seconds=1 + round % 7)
"""


def _start(folder: Path, number: int, quota_bytes: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WRITER, str(folder), str(number), str(quota_bytes)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    return process


def _check(folder: Path, quota_bytes: int) -> int:
    """Everything that is there is right; returns how many entries."""
    with opened(folder, quota_bytes=quota_bytes) as store:
        listed = admin.verify(folder)
        assert not any(one.problem for one in listed.entries)
        assert not listed.warnings
        for one in listed.entries:
            for number in range(400):
                found = (
                    store.lookup(ids_of(number, one.tokens), MODEL)
                    if one.tokens < 900
                    else store.lookup(ids_of(number, 900), MODEL)
                )
                if found is not None and found.entry_id == one.entry_id:
                    loaded = store.load(found)
                    assert loaded is not None
                    assert is_right(loaded, ids_of(number, 900 if one.tokens >= 700 else one.tokens))
                    break
        assert store.counters.warnings["damaged"] == 0
        return len(listed.entries)


def _kill_and_check(tmp_path: Path, times: int) -> None:
    dice = random.Random(3)
    quota_bytes = 4_000_000
    entries = 0
    for _ in range(times):
        process = _start(tmp_path, 0, quota_bytes)
        time.sleep(dice.uniform(0.1, 0.7))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert used_bytes(tmp_path) <= quota_bytes
        entries = max(entries, _check(tmp_path, quota_bytes))
    assert entries > 0


def test_killed_while_it_writes(tmp_path: Path) -> None:
    _kill_and_check(tmp_path, 1)


@pytest.mark.full
def test_killed_often(tmp_path: Path) -> None:
    _kill_and_check(tmp_path, 20)


def test_what_a_killed_process_was_writing_makes_room_while_others_live(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from pipeline.stores.kv.files import Files
from tests.stores.kv.caches import ids_of, opened, put
class Killed(Files):
    def sync(self, descriptor):
        print("writing", flush=True)
        sys.stdin.read()
put(opened(Path(sys.argv[1]), files=Killed()), ids_of(1, 900))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, str(tmp_path)]
    with opened(tmp_path, quota_bytes=400_000) as store:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"writing\n"
            assert put(store, ids_of(2, 900)).reason == "worth_less"  # what is being written counts
        finally:
            process.kill()
            process.communicate()
        assert put(store, ids_of(2, 900)).stored
        assert used_bytes(tmp_path) <= 400_000
        assert store.counters.warnings == {"orphan": 1}


def _together(tmp_path: Path, writers: int, seconds: float) -> None:
    quota_bytes = 3_000_000
    processes = [_start(tmp_path, number, quota_bytes) for number in range(1, writers + 1)]
    try:
        right, ends = 0, time.monotonic() + seconds
        with opened(tmp_path, quota_bytes=quota_bytes) as store:
            while time.monotonic() < ends:
                with (
                    store._place.exclusive()
                ):  # a walk beside renames would count what it meets in both places twice
                    assert used_bytes(tmp_path) <= quota_bytes
                put(store, ids_of(random.randrange(100), 300), seconds=random.uniform(1, 9))
                for number in (100, 101, 200, 201, 150, 250):
                    ids = ids_of(number, 900)
                    found = store.lookup(ids, MODEL)
                    loaded = store.load(found) if found else None
                    right += loaded is not None
                    assert loaded is None or is_right(loaded, ids)
            assert store.counters.warnings["damaged"] == 0
        assert right > 0
        assert all(process.poll() is None for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert _check(tmp_path, quota_bytes) > 0


def test_two_processes_on_one_store(tmp_path: Path) -> None:
    _together(tmp_path, 1, 1.0)


@pytest.mark.full
def test_three_processes_for_longer(tmp_path: Path) -> None:
    _together(tmp_path, 2, 20)


def test_a_lock_that_stays_taken_costs_a_miss_and_a_warning(tmp_path: Path) -> None:
    with opened(tmp_path) as holder, opened(tmp_path, lock_seconds=0.05) as store:
        put(holder, IDS)
        with holder._place.exclusive():
            assert store.lookup(IDS, MODEL) is None
            assert put(store, ids_of(2, 100)).reason == "busy"
            assert store.used_bytes() == 0
        assert store.counters.warnings == {"busy": 3}
        assert store.lookup(IDS, MODEL) is not None


def test_who_keeps_the_lock_is_waited_for_once(tmp_path: Path) -> None:
    with opened(tmp_path) as holder, opened(tmp_path, lock_seconds=0.5) as store:
        with holder._place.exclusive():
            began = time.monotonic()
            assert [store.lookup(IDS, MODEL) for _ in range(5)] == [None] * 5
            assert 0.5 <= time.monotonic() - began < 1.5
        assert put(store, IDS).stored


def test_a_store_that_was_deleted_under_a_run_begins_again(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    with opened(folder) as store:
        put(store, IDS)
        shutil.rmtree(folder)
        assert store.lookup(IDS, MODEL) is None
        assert put(store, IDS).stored
        assert store.lookup(IDS, MODEL) is not None
        with opened(folder) as other:  # what a living process writes is not taken for what a dead one left
            assert other.lookup(IDS, MODEL) is not None
            assert store._place._mine.is_dir()
        assert not store.counters.warnings
