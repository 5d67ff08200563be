from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.stores.kv import admin
from pipeline.stores.kv.files import used_bytes
from tests.stores.kv.caches import MODEL, ids_of, opened, put


def test_a_list_says_what_is_there(tmp_path: Path) -> None:
    now = [1e9]
    with opened(tmp_path, clock=lambda: now[0]) as store:
        put(store, ids_of(1, 150), "prefix", seconds=3, owner={"task": "t"})
        now[0] += 100
        put(store, ids_of(2, 80), "checkpoint", owner={"d": 1})
        put(store, [*ids_of(2, 80), 1], "checkpoint", begin=80, owner={"d": 1})
        listed = admin.ls(tmp_path)  # while a run uses the store
    second, first = listed.entries
    assert (first.kind, first.tokens, first.seconds, first.segments, first.owner) == (
        "prefix",
        150,
        3,
        1,
        {"task": "t"},
    )
    assert (first.created, first.last_used) == (1e9, 1e9)
    assert first.fingerprint == {**MODEL, "storage_format": "as_computed"}
    assert (second.kind, second.tokens, second.segments, second.created) == ("checkpoint", 81, 2, 1e9 + 100)
    assert first.size_bytes + second.size_bytes < listed.used_bytes <= used_bytes(tmp_path) + 20_000
    assert not listed.warnings


def test_verify_reads_every_byte_and_removes_what_is_damaged(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        receipts = [put(store, ids_of(number, 150), with_states=True) for number in range(4)]
        folder = tmp_path / "v1" / "entries"
        path = next((folder / (receipts[1].entry_id or "")).glob("state*"))
        path.write_bytes(path.read_bytes()[:-1] + b"\x77")
        (folder / (receipts[2].entry_id or "") / "manifest.json").write_bytes(b"{}")
        verified = admin.verify(tmp_path)
        assert {one.entry_id: one.problem is None for one in verified.entries} == {
            receipts[0].entry_id: True,
            receipts[1].entry_id: False,
            receipts[3].entry_id: True,
        }
        assert verified.warnings == {"damaged": 2}
        assert len(admin.verify(tmp_path).entries) == 2
        assert [store.lookup(ids_of(number, 150), MODEL) is not None for number in range(4)] == [
            True,
            False,
            False,
            True,
        ]


def test_prune_by_age_kind_and_size(tmp_path: Path) -> None:
    now = [1e9]
    with opened(tmp_path, clock=lambda: now[0]) as store:
        put(store, ids_of(0, 150), "checkpoint", owner={"d": 1})
        put(store, ids_of(1, 150))
        now[0] += 1000
        for number in range(2, 6):
            put(store, ids_of(number, 150), seconds=number)
        assert [
            one.kind
            for one in admin.prune(tmp_path, unused_seconds=900, kinds=["document"], now=now[0]).entries
        ] == ["document"]
        assert store.lookup(ids_of(1, 150), MODEL) is None
        listed = admin.ls(tmp_path)
        limit = listed.used_bytes - 5 * listed.entries[0].size_bytes // 2
        pruned = admin.prune(tmp_path, to_bytes=limit, now=now[0])
        assert pruned.used_bytes <= limit
        assert [one.seconds for one in pruned.entries] == [2, 3, 4]
        assert store.find_checkpoint(MODEL, {"d": 1}) is not None
        assert not admin.prune(tmp_path, to_bytes=limit, now=now[0]).entries
        assert len(admin.prune(tmp_path).entries) == 2
        assert not admin.ls(tmp_path).entries


def test_where_no_store_is(tmp_path: Path) -> None:
    for action in (admin.ls, admin.verify, admin.prune):
        with pytest.raises(UsageError, match="there is no KV store"):
            action(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_it_needs_no_torch() -> None:
    code = (
        "import pipeline.stores.kv.admin, pipeline.stores.kv.sizes, pipeline.stores.kv.io_speed, sys; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
