"""The source as a whole: lazy, flat in memory, quick to stop, exact in what it closes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import SourceConfig
from pipeline.records import Document
from pipeline.sources import read_source
from tests.sources.reading import json_lines, packed, pairs, put, read
from tests.tiers import quick

COUNT = 100_000


def lines() -> bytes:
    return b"".join(b'{"id": %d, "text": "short text %d"}\n' % (number, number) for number in range(COUNT))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 100,000 short records in each format, each in a folder of its own."""
    folder = tmp_path_factory.mktemp("large")
    texts = [f"short text {number}" for number in range(COUNT)]
    put(folder / "jsonl/a.jsonl", lines())
    put(folder / "gz/a.jsonl.gz", packed(lines(), ".gz"))
    put(folder / "zst/a.jsonl.zst", packed(lines(), ".zst"))
    put(folder / "json/a.json", b"[" + lines().rstrip().replace(b"}\n", b"},\n") + b"]")
    put(
        folder / "csv/a.csv",
        "id,text\n" + "".join(f'{number},"{text}"\n' for number, text in enumerate(texts)),
    )
    (folder / "parquet").mkdir()
    table = pa.table({"id": list(range(COUNT)), "text": texts})
    pq.write_table(table, folder / "parquet/a.parquet")
    datasets.Dataset(table).save_to_disk(folder / "saved")
    for number in range(300):
        put(folder / f"text/{number}.txt", "x" * 100_000)
    return folder


_FORMS = ("jsonl", "gz", "zst", "json", "csv", "parquet", "saved", "text")


@pytest.mark.parametrize("form", quick(_FORMS, "jsonl", "parquet"))
def test_memory_is_flat(large: Path, form: str) -> None:
    next(iter(read_source(SourceConfig(path=str(large / form)))))  # imports are not counted
    arrow_bytes = pa.total_allocated_bytes()
    tracemalloc.start()
    count, peak_arrow_bytes = 0, 0
    for item in read_source(SourceConfig(path=str(large / form))):
        count += isinstance(item, Document)
        if count % 1000 == 0:
            peak_arrow_bytes = max(peak_arrow_bytes, pa.total_allocated_bytes() - arrow_bytes)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == (300 if form == "text" else COUNT)
    assert peak_bytes < 3_000_000
    assert peak_arrow_bytes < 16_000_000


@pytest.mark.parametrize("form", quick([*_FORMS, "hub"], "zst", "parquet", "hub"))
def test_the_process_ends_promptly_after_a_partial_read(large: Path, form: str) -> None:
    program = (
        "import sys\nfrom itertools import islice\nfrom pipeline.config import SourceConfig\nfrom "
        "pipeline.sources import read_source\n"
        "config = SourceConfig(path=sys.argv[1])\nrows = read_source(config)\n"
        "if sys.argv[2] == 'hub':\n"
        "    import datasets\n    from pipeline.sources.hub import stream_rows\n    from "
        "pipeline.sources.rows import wanted\n"
        "    dataset = datasets.load_dataset('parquet', data_files=sys.argv[1] + '/a.parquet', "
        "split='train', streaming=True)\n"
        "    rows = stream_rows(dataset, 'x', wanted(config, ()))\n"
        "print(len(list(islice(rows, 3))))\n"
    )
    folder = large / ("parquet" if form == "hub" else form)
    command = [sys.executable, "-c", program, str(folder), form]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(large / "home")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


@pytest.mark.parametrize("form", ["jsonl", "gz", "zst", "json", "csv", "parquet"])
def test_closing_early_closes_the_file(large: Path, form: str) -> None:
    def is_open() -> bool:
        folder = str(large / form)
        return any(os.path.realpath(link).startswith(folder) for link in Path("/proc/self/fd").iterdir())

    rows = iter(read_source(SourceConfig(path=str(large / form))))
    next(rows)
    assert is_open()
    rows.close()  # type: ignore[attr-defined]  # a generator, announced as an iterator
    assert not is_open()


def test_a_folder_of_everything_keeps_going(tmp_path: Path) -> None:
    rows = [{"id": "1", "text": "a"}]
    put(tmp_path / "1.jsonl", json_lines(rows))
    put(tmp_path / "2.jsonl.gz", packed(json_lines(rows * 1000), ".gz")[:-20])
    put(tmp_path / "3.json", json.dumps(rows))
    put(tmp_path / "4.csv", "id,text\n2,b\n".encode("utf-16"))
    put(tmp_path / "5.parquet", b"PAR1 not really")
    put(tmp_path / "6/x.txt", "text")
    put(tmp_path / "7.tsv", "id\ttext\n3\tc\n")
    put(tmp_path / "README.md", "about the records")
    documents, rejects = read(tmp_path)
    assert pairs(documents)[0] == ("1", "a")
    assert [pair for pair in pairs(documents) if pair != ("1", "a")] == [("3", "c")]  # no text beside records
    assert [Path(reject.origin.file).name for reject in rejects] == ["2.jsonl.gz", "4.csv", "5.parquet"]


def test_the_order_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("b", "a", "c/a", "c/b"):
        put(
            tmp_path / f"{name}.jsonl",
            json_lines([{"id": f"{name}{number}", "text": "t"} for number in range(3)]),
        )
    first = pairs(read(tmp_path)[0])
    assert first == pairs(read(tmp_path)[0])
    assert [identity for identity, _ in first] == [
        f"{name}{number}" for name in ("a", "b", "c/a", "c/b") for number in range(3)
    ]


def test_importing_sources_is_light() -> None:
    program = (
        "import sys, pipeline.sources\nprint(sorted({'torch', 'pyarrow', 'datasets', 'fsspec', "
        "'zstandard'} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )
