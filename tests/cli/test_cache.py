"""``overnight cache`` lists, verifies and prunes, by configuration, run directory or folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.nights import ANight
from tests.stores.kv.caches import ids_of, opened, put


@pytest.fixture
def night(tmp_path: Path) -> ANight:
    """A run directory whose store holds two documents and a prefix."""
    made = ANight(tmp_path, [])
    with opened(made.directory / "kv") as store:
        for seed, kind in enumerate(("document", "document", "prefix")):
            assert put(store, ids_of(seed, 100), kind).stored
    return made


def asked(night: ANight, *arguments: str) -> dict[str, Any]:
    done = night.command("cache", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_ls_finds_the_store_of_whatever_it_is_told(night: ANight) -> None:
    for place in (night.config, night.directory, night.directory / "kv"):
        facts = asked(night, "ls", str(place))
        assert sorted(entry["kind"] for entry in facts["entries"]) == ["document", "document", "prefix"]
        assert facts["used_bytes"] > 0
    raw = yaml.safe_load(night.config.read_text(encoding="utf-8"))
    elsewhere = {**raw, "kv_cache": {"store": {"path": str(night.folder / "shared")}}}
    night.config.write_text(yaml.safe_dump(elsewhere), encoding="utf-8")
    refused = night.command("cache", "ls", str(night.config))
    assert (refused.returncode, "there is no KV store" in refused.stderr) == (2, True)


def test_verify_removes_what_is_damaged(night: ANight) -> None:
    path = next((night.directory / "kv").rglob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    facts = asked(night, "verify", str(night.directory))
    assert sum(entry["problem"] is not None for entry in facts["entries"]) == 1
    assert len(asked(night, "ls", str(night.directory))["entries"]) == 2


def test_verify_tells_of_damage_that_the_manifest_shows(night: ANight) -> None:
    path = next((night.directory / "kv").rglob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    done = night.command("cache", "verify", str(night.directory))
    assert (done.returncode, "2 entries verified; 1 damaged and removed" in done.stdout) == (0, True)


def test_prune_wants_to_know_what(night: ANight) -> None:
    done = night.command("cache", "prune", str(night.directory))
    assert (done.returncode, "--all" in done.stderr) == (2, True)
    done = night.command("cache", "prune", str(night.directory), "--all", "--unused-days", "9")
    assert (done.returncode, "one or the other" in done.stderr) == (2, True)
    assert len(asked(night, "prune", str(night.directory), "--kind", "document")["entries"]) == 2
    (left,) = asked(night, "ls", str(night.directory))["entries"]
    assert left["kind"] == "prefix"
    assert asked(night, "prune", str(night.directory), "--to", "0B")["entries"]
    assert not asked(night, "ls", str(night.directory))["entries"]
