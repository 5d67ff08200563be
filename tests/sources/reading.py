"""What the tests of sources share: write a file, read it, tell documents from rejects."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import zstandard

from pipeline.config import SourceConfig
from pipeline.records import Document, Reject
from pipeline.sources import read_source


def read(
    path: Path | str | list[str], fields: Iterable[str] = (), **settings: Any
) -> tuple[list[Document], list[Reject]]:
    """(documents, rejects) of a source, each in order."""
    config = SourceConfig(path=path if isinstance(path, list) else str(path), **settings)
    items = list(read_source(config, tuple(fields)))
    return [item for item in items if isinstance(item, Document)], [
        item for item in items if isinstance(item, Reject)
    ]


def pairs(documents: Iterable[Document]) -> list[tuple[str, str]]:
    return [(document.id, document.text) for document in documents]


def json_lines(rows: Iterable[Mapping[str, Any]], *, ascii_only: bool = False) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=ascii_only).encode() + b"\n" for row in rows)


def packed(data: bytes, compression: str) -> bytes:
    """``data`` as it stands in a file with the ending ``compression`` ("", ".gz" or ".zst")."""
    if compression == ".gz":
        return gzip.compress(data)
    return zstandard.ZstdCompressor().compress(data) if compression == ".zst" else data


def put(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path
