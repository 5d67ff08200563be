"""The quota, the free-space floor, full disks, and who makes room for whom."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.stores.kv.directory import HOUSEKEEPING_BYTES
from pipeline.stores.kv.eviction import (
    ABANDONED_SECONDS,
    FORGOTTEN_SECONDS,
    HALF_LIFE_SECONDS,
    EvictionFacts,
    choose_victims,
)
from pipeline.stores.kv.files import used_bytes
from tests.stores.kv.caches import MODEL, ids_of, is_right, opened, put
from tests.stores.kv.disks import FailingFiles, FewFreeBytes, full_disk


@pytest.fixture
def room(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], int]:
    """The quota that just holds so many entries of 150 tokens on this file system."""
    folder = tmp_path_factory.mktemp("room")
    with opened(folder) as store:
        empty = used_bytes(folder)
        put(store, ids_of(0, 150))
        one = used_bytes(folder) - empty + 64
    return lambda count: empty + count * one + one // 2 + HOUSEKEEPING_BYTES


def facts(
    name: str, kind: str = "document", size: int = 100, seconds: float = 1.0, used: float = 0.0
) -> EvictionFacts:
    return EvictionFacts(name, kind, size, seconds, used)  # type: ignore[arg-type]


def names(chosen: object) -> list[str] | None:
    return None if chosen is None else [one.entry_id for one in chosen]  # type: ignore[attr-defined]


def test_the_cheapest_for_its_bytes_goes_first() -> None:
    held = [facts("dear", seconds=9), facts("large", size=1000, seconds=2), facts("cheap", seconds=0.5)]
    assert names(choose_victims(held, 1, 0, facts("new", seconds=10))) == ["large"]
    assert names(choose_victims(held, 1001, 0, facts("new", seconds=100))) == ["large", "cheap"]


def test_no_more_goes_than_is_needed() -> None:
    held = [facts("a", seconds=1), facts("b", seconds=2), facts("large", size=1000, seconds=50)]
    assert names(choose_victims(held, 150, 0)) == ["a", "b"]
    assert names(choose_victims(held, 250, 0)) == ["large"]
    assert names(choose_victims(held, 1050, 0)) == ["a", "large"]
    assert names(choose_victims(held, 1200, 0)) == ["a", "b", "large"]


def test_age_halves_the_worth_each_week() -> None:
    held = [facts("old", seconds=3), facts("young", seconds=2, used=HALF_LIFE_SECONDS)]
    assert names(choose_victims(held, 1, HALF_LIFE_SECONDS, facts("new", seconds=9))) == ["old"]


def test_what_is_worth_about_the_same_is_not_displaced() -> None:
    assert choose_victims([facts("a")], 1, 0, facts("new", seconds=1.2)) is None
    assert names(choose_victims([facts("a")], 1, 0, facts("new", seconds=1.3))) == ["a"]


def test_documents_give_way_to_prefixes_and_both_to_checkpoints_never_the_other_way() -> None:
    held = [
        facts("document", seconds=99),
        facts("prefix", "prefix", seconds=0.1),
        facts("checkpoint", "checkpoint", seconds=0.1),
    ]
    assert names(choose_victims(held, 250, 0, facts("new", "checkpoint", seconds=0.1))) is None
    assert names(choose_victims(held, 200, 0, facts("new", "checkpoint", seconds=0.1))) == [
        "document",
        "prefix",
    ]
    assert names(choose_victims(held, 100, 0, facts("new", "prefix", seconds=0.1))) == ["document"]
    assert choose_victims(held[1:], 1, 0, facts("new", seconds=1e9)) is None
    assert choose_victims(held[2:], 1, 0, facts("new", "prefix", seconds=1e9)) is None


def test_an_abandoned_checkpoint_makes_room_for_another_only() -> None:
    held = [facts("abandoned", "checkpoint")]
    later = ABANDONED_SECONDS + 1
    assert names(choose_victims(held, 1, later, facts("new", "checkpoint", used=later))) == ["abandoned"]
    assert choose_victims(held, 1, later, facts("new", "document", seconds=1e9, used=later)) is None
    assert choose_victims(held, 1, ABANDONED_SECONDS - 1, facts("new", "checkpoint")) is None


def test_a_forgotten_checkpoint_does_not_hold_its_place_for_ever() -> None:
    held, later = [facts("forgotten", "checkpoint")], FORGOTTEN_SECONDS + 1
    assert names(choose_victims(held, 1, later, facts("new", used=later))) == ["forgotten"]
    assert choose_victims(held, 1, FORGOTTEN_SECONDS - 1, facts("new", seconds=1e9, used=later)) is None


def test_a_smaller_quota_takes_checkpoints_last() -> None:
    held = [facts("checkpoint", "checkpoint"), facts("prefix", "prefix"), facts("document", seconds=99)]
    assert names(choose_victims(held, 201, 0)) == ["document", "prefix", "checkpoint"]
    assert names(choose_victims(held, 10_000, 0)) == ["document", "prefix", "checkpoint"]
    assert names(choose_victims(held, 0, 0)) == []


def test_a_full_store_keeps_what_it_has_and_takes_what_is_dearer(
    tmp_path: Path, room: Callable[[int], int]
) -> None:
    with opened(tmp_path, quota_bytes=room(3)) as store:
        receipts = [put(store, ids_of(number, 150)) for number in range(6)]
        assert [receipt.reason for receipt in receipts] == [
            None,
            None,
            None,
            "worth_less",
            "worth_less",
            "worth_less",
        ]
        assert used_bytes(tmp_path) <= room(3)
        assert store.lookup(ids_of(0, 150), MODEL) is not None
        assert put(store, ids_of(9, 150), seconds=5).stored
        assert store.counters.evicted == 1
        assert used_bytes(tmp_path) <= room(3)
        assert put(store, ids_of(10, 4000), seconds=1e9).reason == "quota"
        assert sum(store.lookup(ids_of(number, 150), MODEL) is not None for number in (0, 1, 2, 9)) == 3


def test_prefixes_and_checkpoints_outlive_documents(tmp_path: Path, room: Callable[[int], int]) -> None:
    with opened(tmp_path, quota_bytes=room(3)) as store:
        put(store, ids_of(0, 150), "prefix", seconds=0.01)
        put(store, ids_of(1, 150), "checkpoint", seconds=0.01, owner={"d": 1})
        for number in range(2, 10):
            put(store, ids_of(number, 150), seconds=10.0**number)
        assert store.lookup(ids_of(0, 150), MODEL) is not None
        assert store.find_checkpoint(MODEL, {"d": 1}) is not None
        assert store.counters.stored == 10
        assert store.counters.evicted == 7


def test_used_entries_stay_longer(tmp_path: Path, room: Callable[[int], int]) -> None:
    now = [1e9]
    with opened(tmp_path, quota_bytes=room(3), clock=lambda: now[0]) as store:
        for number in range(3):
            put(store, ids_of(number, 150))
        now[0] += 14 * 86_400
        for number in (0, 2):
            found = store.lookup(ids_of(number, 150), MODEL)
            assert found is not None
            store.load(found)
        put(store, ids_of(3, 150))
        assert [store.lookup(ids_of(number, 150), MODEL) is not None for number in range(4)] == [
            True,
            False,
            True,
            True,
        ]


def test_a_quota_cut_in_half_between_runs_is_kept_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in range(8):
            put(store, ids_of(number, 150), seconds=1 + number)
        put(store, ids_of(99, 150), "checkpoint", seconds=0.1, owner={"d": 1})
    half = used_bytes(tmp_path) // 2
    with opened(tmp_path, quota_bytes=half) as store:
        assert used_bytes(tmp_path) <= half
        assert store.find_checkpoint(MODEL, {"d": 1}) is not None
        left = [number for number in range(8) if store.lookup(ids_of(number, 150), MODEL)]
        assert left == list(range(8 - len(left), 8))
        found = store.lookup(ids_of(7, 150), MODEL)
        assert found is not None
        loaded = store.load(found)
        assert loaded is not None
        assert is_right(loaded, ids_of(7, 150))


def test_files_that_are_not_ours_count(tmp_path: Path, room: Callable[[int], int]) -> None:
    (tmp_path / "v0").mkdir()
    (tmp_path / "v0" / "old").write_bytes(bytes(room(3) - room(0)))
    with opened(tmp_path, quota_bytes=room(4)) as store:
        assert [put(store, ids_of(number, 150)).stored for number in range(3)] == [True, False, False]
        assert used_bytes(tmp_path) <= room(4)


def test_the_free_space_floor(tmp_path: Path) -> None:
    disk = FewFreeBytes(10**9)
    with opened(tmp_path, files=disk, free_floor_bytes=10**8) as store:
        assert put(store, ids_of(0, 150)).stored
        disk.left_bytes = 10**8 + 1000
        assert put(store, ids_of(1, 150)).reason == "free_space"
        assert store.lookup(ids_of(0, 150), MODEL) is not None
        assert store.counters.declined == {"free_space": 1}


@pytest.mark.parametrize(
    "number",
    [
        errno.ENOSPC,
        *(pytest.param(number, marks=pytest.mark.full) for number in (errno.EDQUOT, errno.EIO, errno.EROFS)),
    ],
)
def test_a_write_that_fails_anywhere_is_declined_and_breaks_nothing(tmp_path: Path, number: int) -> None:
    ids = ids_of(1, 200)
    steps, at = 1, 0
    while at < steps:
        at += 1
        folder = tmp_path / str(at)
        disk = FailingFiles(None, OSError(number, "no"), for_good=False)
        with opened(folder, files=disk) as store:
            put(store, ids[:100], "checkpoint", owner={"d": 1}, with_states=True)
            before = disk.count
            disk.fails_at = before + at
            receipt = put(store, ids, "checkpoint", begin=100, owner={"d": 1}, with_states=True)
            if at == 1:
                probe = disk.count - before
            disk.fails_at = None
            steps = max(steps, disk.count - before, probe)
            found = store.find_checkpoint(MODEL, {"d": 1})
            assert found is not None, at
            assert found.tokens == 200 if receipt.stored else found.tokens in (100, 200), at
            loaded = store.load(found)
            assert loaded is not None
            assert is_right(loaded, ids)
            assert put(store, ids_of(2, 100)).stored
            if not receipt.stored:
                assert receipt.reason == ("disk_full" if number in (errno.ENOSPC, errno.EDQUOT) else "error")
                assert store.counters.declined == {receipt.reason: 1}
            assert store.used_bytes() == used_bytes(folder)
    assert at > 8


@pytest.mark.parametrize("told", [True, False], ids=["seen", "hit"])
def test_a_real_full_disk(tmp_path: Path, told: bool) -> None:
    """``hit``: others fill the disk between the look at its free space and the write."""
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if (
        shutil.which("mount") is None
        or subprocess.run(command, check=False, capture_output=True).returncode != 0
    ):
        pytest.skip("a small file system can only be mounted by root")
    try:
        reason = "free_space" if told else "disk_full"
        with opened(tmp_path, files=None if told else FewFreeBytes(10**9)) as store:
            receipts = [put(store, ids_of(number, 150)) for number in range(10)]
            reasons = [receipt.reason for receipt in receipts]
            assert reasons[0] is None
            assert reasons[-1] == reason
            assert set(reasons) == {None, reason}
            assert store.counters.declined[reason] == reasons.count(reason)
            for number, receipt in enumerate(receipts):
                found = store.lookup(ids_of(number, 150), MODEL)
                assert (found is not None) == receipt.stored
                assert found is None or is_right(
                    store.load(found) or pytest.fail("missed"), ids_of(number, 150)
                )
            store.discard(receipts[0].entry_id or "")
            assert put(store, ids_of(50, 150)).stored
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_place_that_cannot_be_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(UsageError, match="cannot be used"):
        opened(tmp_path / "file" / "store")
    with pytest.raises(UsageError, match="cannot be used"):
        opened(tmp_path / "store", files=FailingFiles(1, full_disk(), for_good=True))
