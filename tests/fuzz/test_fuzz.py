"""Whatever bytes come in, only the project's own errors come out: readers, configuration, the headers of
cache files.

The full tier reaches 100,000 inputs over all tests of this file; ``INPUTS`` says how many each takes in
either tier.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.config import load_config, parse_config
from pipeline.errors import ConfigError, SourceError
from pipeline.stores.kv.files import Files
from pipeline.stores.kv.manifest import DamagedEntry, parse
from pipeline.stores.kv.tensor_file import FileLayout, FilePart, check, checksum
from pipeline.stores.kv.tensor_file import write as write_tensors
from tests.fuzz.things import ANYTHING, CONFIG, MANIFEST, damaged, replaced
from tests.sources.test_properties import WRITERS, junk, read_bytes, rows

FORMATS = ("a.jsonl", "a.json", "a.csv", "a.parquet", "a.jsonl.gz")
INPUTS = {  # quick, full
    "reader": (60, 8_000),  # for each of FORMATS
    "text": (100, 8_000),
    "mapping": (150, 22_000),
    "override": (100, 8_000),
    "manifest": (150, 14_000),
    "header": (100, 10_000),
}


def inputs(of: str) -> pytest.MarkDecorator:
    quick, full = INPUTS[of]
    return pytest.mark.parametrize(
        "count", [quick, pytest.param(full, marks=[pytest.mark.full, pytest.mark.timeout(3600)])]
    )


def tried(count: int, strategy: st.SearchStrategy[Any], one: Callable[[Any], None]) -> None:
    """``one`` with so many values; it raises what it does not expect."""
    seen = 0

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def fuzz(value: Any) -> None:
        nonlocal seen
        seen += 1
        one(value)

    fuzz()
    assert seen >= min(count, 60)


def test_the_full_tier_reaches_a_hundred_thousand() -> None:
    total = sum(full * (len(FORMATS) if name == "reader" else 1) for name, (_, full) in INPUTS.items())
    assert total >= 100_000


@inputs("reader")
@pytest.mark.parametrize("name", FORMATS)
def test_readers(name: str, count: int) -> None:
    whole = rows.map(WRITERS[name])
    files = st.one_of(junk, junk.map(gzip.compress) if name.endswith(".gz") else junk, damaged(whole))

    def one(data: bytes) -> None:
        with contextlib.suppress(SourceError):
            read_bytes(name, data)

    tried(count, files, one)


@inputs("text")
def test_configuration_files(count: int) -> None:
    written = yaml.safe_dump(CONFIG).encode()
    files = st.one_of(
        junk,
        st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
        damaged(st.just(written)),
    )

    def one(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.yaml"
            path.write_bytes(data)
            with contextlib.suppress(ConfigError):
                load_config(path)

    tried(count, files, one)


@inputs("mapping")
def test_configurations(count: int) -> None:
    def one(raw: Any) -> None:
        with contextlib.suppress(ConfigError):
            parse_config(raw)

    tried(count, replaced(CONFIG), one)


@inputs("override")
def test_overrides(count: int, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    keys = st.sampled_from(
        [
            "run",
            "tasks",
            "tasks.0",
            "tasks.topic.labels",
            "model.max_memory",
            "source.path.0",
            "",
            ".",
            "a..b",
            "tasks.-1",
        ]
    )
    words = st.one_of(st.tuples(keys, st.text(max_size=20)).map("=".join), st.text(max_size=30))

    def one(override: str) -> None:
        with contextlib.suppress(ConfigError):
            load_config(path, [override])

    tried(count, words, one)


@inputs("manifest")
def test_manifests_of_cache_entries(count: int) -> None:
    def signed(body: Any) -> bytes:
        """As somebody would forge it: with the digest that fits."""
        from pipeline.records import digest
        from pipeline.stores.kv.manifest import canonical

        with contextlib.suppress(TypeError, ValueError):
            return json.dumps({**body, "digest": digest(canonical(body))}).encode()
        return json.dumps(ANY_TEXT).encode()

    def one(data: bytes) -> None:
        with contextlib.suppress(DamagedEntry):
            parse(data, MANIFEST["entry_id"])

    tried(count, st.one_of(junk, damaged(st.just(signed(MANIFEST))), replaced(MANIFEST).map(signed)), one)


ANY_TEXT = "no manifest"


@inputs("header")
def test_headers_of_cache_files(count: int, tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "segment"
    layout = FileLayout.of(
        [FilePart("L0.k", "F32", (2, 3)), FilePart("ids", "U32", (3,))], {"format": "as_computed"}
    )
    descriptor = files.allocate(path, layout.size_bytes)
    write_tensors(
        files, descriptor, layout, [("L0.k", memoryview(bytes(24))), ("ids", memoryview(bytes(12)))]
    )
    os.close(descriptor)
    whole = path.read_bytes()
    header = json.loads(whole[8 : layout.header_bytes])

    def packed(value: Any) -> bytes:
        text = json.dumps(value).encode()
        return len(text).to_bytes(8, "little") + text

    def one(data: bytes) -> None:
        path.write_bytes(data + whole[layout.header_bytes :])
        descriptor = os.open(path, os.O_RDONLY)
        try:
            with contextlib.suppress(DamagedEntry):  # also with a checksum that fits
                check(files, descriptor, len(data), checksum(data))
        finally:
            os.close(descriptor)

    check_whole = copy.copy(whole[: layout.header_bytes])
    one(check_whole)
    strange = st.one_of(
        junk, damaged(st.just(check_whole)), replaced(header).map(packed), ANYTHING.map(packed)
    )
    tried(count, strange, one)
