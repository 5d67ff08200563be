"""Datasets of the Hub and saved ones. No network: streaming runs over local Parquet files through the same
library calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from pipeline.config import SourceConfig
from pipeline.errors import SourceError
from pipeline.records import Document
from pipeline.sources import read_source, source_files
from pipeline.sources.files import is_hub, is_saved
from pipeline.sources.hub import stream_rows
from pipeline.sources.rows import to_document, wanted
from tests.sources.reading import pairs, read

ROWS = {
    "id": [1, 2, 3],
    "text": ["a", None, "c"],
    "title": ["x", "y", "z"],
    "other": [{"n": 1}, {"n": 2}, {"n": 3}],
}


@pytest.mark.parametrize(
    ("path", "hub"),
    [
        ("hf://datasets/owner/name", True),
        ("hf://owner/name", True),
        ("hf://name", True),
        ("hf://datasets/o/n/data/x.parquet", False),
        ("o/n", False),
    ],
)
def test_which_paths_name_a_dataset(path: str, hub: bool) -> None:
    assert is_hub(path) is hub


def test_streamed_rows(tmp_path: Path) -> None:
    datasets.Dataset.from_dict(ROWS).to_parquet(tmp_path / "a.parquet")
    files, cache = str(tmp_path / "a.parquet"), str(tmp_path / "cache")
    dataset = datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=True, cache_dir=cache
    )
    want = wanted(SourceConfig(path="hf://owner/name"), ["title"])
    rows = list(stream_rows(dataset, "hf://owner/name", want))
    assert all(set(row.values) == {"id", "text", "title"} for row in rows)
    found = [to_document(row, want) for row in rows]
    assert [(item.id, item.text, dict(item.fields)) for item in found if isinstance(item, Document)] == [
        ("1", "a", {"title": "x"}),
        ("3", "c", {"title": "z"}),
    ]
    assert [row.origin.line for row in rows] == [1, 2, 3]
    with pytest.raises(SourceError, match="no column 'body'"):
        next(stream_rows(dataset, "d", wanted(SourceConfig(path="d", text_field="body"), ())))


def test_a_stream_that_breaks_is_told_with_its_place(tmp_path: Path) -> None:
    def generate() -> object:
        yield {"id": 1, "text": "a"}
        raise OSError("connection lost")

    dataset = datasets.IterableDataset.from_generator(generate)
    rows = stream_rows(dataset, "hf://owner/name", wanted(SourceConfig(path="d"), ()))
    assert next(rows).values == {"id": 1, "text": "a"}
    with pytest.raises(
        SourceError, match=r"broke after 1 rows: OSError: connection lost; .*run the same command again"
    ):
        next(rows)


def test_a_dataset_out_of_reach_is_one_sentence(tmp_path: Path) -> None:
    program = (
        "from pipeline.config import SourceConfig\nfrom pipeline.errors import SourceError\n"
        "from pipeline.sources import read_source, source_files\n"
        "config = SourceConfig(path='hf://datasets/some-owner/some-name')\nassert source_files(config) == "
        "[]\n"
        "try:\n    next(iter(read_source(config)))\nexcept SourceError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=True,
    )
    assert done.stdout.startswith("cannot open the Hub dataset 'some-owner/some-name': ")
    assert "HF_HUB_OFFLINE must not be set" in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_local_folder_never_stands_in_for_a_hub_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match="a local folder owner/name hides that dataset"):
        read("hf://owner/name")


def test_a_saved_dataset(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    datasets.Dataset.from_dict(ROWS).select([2, 1, 0]).save_to_disk(path)
    assert is_saved(str(path))
    documents, rejects = read(path, ["title"])
    assert pairs(documents) == [("3", "c"), ("1", "a")]
    assert [dict(document.fields) for document in documents] == [{"title": "z"}, {"title": "x"}]
    assert "is null" in rejects[0].reason
    assert rejects[0].origin.line == 2
    assert str(path / "state.json") in source_files(SourceConfig(path=str(path)))
    with pytest.raises(SourceError, match="no column 'body'"):
        read(path, text_field="body")


def test_a_saved_dataset_of_several_splits(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    rows = datasets.Dataset.from_dict(ROWS)
    datasets.DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(path)
    assert pairs(read(path, split="test")[0]) == [("1", "a")]
    assert len(read(path)[0]) == 2
    with pytest.raises(SourceError, match=r"no split 'dev' \(splits: train, test\)"):
        read(path, split="dev")


def test_a_damaged_saved_dataset_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    datasets.Dataset.from_dict(ROWS).save_to_disk(path)
    next(path.glob("*.arrow")).write_bytes(b"nonsense")
    with pytest.raises(SourceError, match="cannot read the saved dataset"):
        list(read_source(SourceConfig(path=str(path))))
    with pytest.raises(SourceError, match="cannot read the saved dataset"):
        list(read_source(SourceConfig(path=str(tmp_path), format="saved")))
