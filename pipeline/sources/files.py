"""Which files a configuration means: paths, folders, globs, lists and fsspec URLs, in a stable order, each
with its format.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pipeline.config import SourceConfig
from pipeline.errors import SourceError
from pipeline.sources.rows import mend

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".md": "text",
}
_COMPRESSIONS = {".gz": "gz", ".zst": "zst"}
_SAVED_MARKS = ({"state.json", "dataset_info.json"}, {"dataset_dict.json"})
_KNOWN = (
    "known are .jsonl, .ndjson, .json, .csv, .tsv, .txt and .md (each also with .gz or .zst) and .parquet"
)
# endings of what people have, and what to do
_OTHERS = {
    ".xlsx .xls .xlsm .ods": "save the sheet as CSV (UTF-8), and name that file",
    ".pdf .doc .docx .odt .rtf .epub": "save the documents as plain text (.txt) first",
    ".zip .tar .tgz .7z .rar": "unpack it, and name the files that were in it",
    ".bz2 .xz .lz4": "unpack it, or pack it again by gzip or zstd",
    ".feather .arrow .orc .avro .h5 .pkl .pickle .sqlite .db": "write the rows to a .csv or .parquet first",
}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read. ``name`` is how messages call it, ``relative`` its path below the folder or pattern
    that was given.
    """

    name: str
    path: str
    relative: str
    format: str
    compression: str = ""
    filesystem: Any = None  # an fsspec filesystem (untyped); None is the local disk

    @property
    def identity(self) -> str:
        """The same for every path that leads to it."""
        return os.path.realpath(self.path) if self.filesystem is None else self.name

    def open(self) -> IO[bytes]:
        """Open for reading bytes, without decompression."""
        if self.filesystem is None:
            return Path(self.path).open("rb")
        stream: IO[bytes] = self.filesystem.open(self.path, "rb")
        return stream


@dataclass(frozen=True, slots=True)
class _Found:
    """A path that a configured one stands for; ``named`` where the user named the very file or chose the
    format for a pattern.
    """

    path: str
    relative: str
    named: bool


def is_hub(path: str) -> bool:
    """Whether ``path`` names a whole Hub dataset (``hf://owner/name``) and not a file in one."""
    return path.startswith("hf://") and len(hub_name(path).split("/")) <= 2


def is_table(path: str) -> bool:
    """Whether ``path`` names a file that spreadsheets read and write: .csv or .tsv, compressed or not."""
    name = PurePosixPath(path.lower())
    return (PurePosixPath(name.stem) if name.suffix in _COMPRESSIONS else name).suffix in (".csv", ".tsv")


def hub_name(path: str) -> str:
    """``owner/name`` of ``hf://datasets/owner/name`` or ``hf://owner/name``."""
    return path.removeprefix("hf://").removeprefix("datasets/").strip("/")


def is_saved(path: str) -> bool:
    """Whether ``path`` is a local folder written by ``save_to_disk``."""
    return "://" not in path and any(
        all((Path(path) / mark).is_file() for mark in marks) for marks in _SAVED_MARKS
    )


def expand(path: str, config: SourceConfig) -> tuple[list[SourceFile], Counter[str]]:
    """The files that one configured path stands for, sorted, and how many others lie there, by the ending
    that nobody reads. Raises SourceError when there are none.
    """
    try:
        filesystem, place = _filesystem(path)
        found = sorted(_find(filesystem, place, config.format != "auto"), key=lambda item: item.path)
    except SourceError:
        raise
    except Exception as error:  # remote filesystems raise their libraries' own classes
        said = f"{type(error).__name__}: {error}"
        raise SourceError(
            f"cannot look up {path}: {said}; check the address, the network and your access"
        ) from error
    if not found:
        hint = "check source.path (relative paths start at the current folder)"
        raise SourceError(f"nothing is at {path}: no file, folder with files or pattern matches it; {hint}")
    files = [file for item in found if (file := _classify(filesystem, item, config.format)) is not None]
    kept = {file.path for file in files}
    others = Counter(PurePosixPath(item.path).suffix or "(none)" for item in found if item.path not in kept)
    if not files:
        raise SourceError(_no_file(path, others, config.format))
    return files, others


def _filesystem(path: str) -> tuple[Any, str]:
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    if "://" not in path and "::" not in path:
        return None, str(Path(path))
    import fsspec  # only where a URL is used

    try:
        filesystem, place = fsspec.core.url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise SourceError(
            f"cannot read {path}: {error}; use a local path or install the filesystem for that protocol"
        ) from None
    return filesystem, str(place)


def _find(filesystem: Any, place: str, format_chosen: bool) -> Iterator[_Found]:
    is_file, is_folder = (
        (_is_file, _is_folder) if filesystem is None else (filesystem.isfile, filesystem.isdir)
    )
    if is_file(place):
        yield _Found(place, PurePosixPath(place).name, True)
    elif is_folder(place):
        listed = _walk(place, set()) if filesystem is None else filesystem.find(place)
        yield from _visible(place, listed, named=False)
    elif glob.has_magic(place):
        # glob takes absolute patterns, which Path.glob refuses
        matched = glob.iglob(place, recursive=True) if filesystem is None else filesystem.glob(place)  # noqa: PTH207
        yield from _visible(
            _fixed_folder(place), (path for path in matched if not is_folder(path)), named=format_chosen
        )


def _is_file(path: str) -> bool:
    return Path(path).is_file()


def _is_folder(path: str) -> bool:
    return Path(path).is_dir()


def _visible(root: str, paths: Iterator[str] | Sequence[str], *, named: bool) -> Iterator[_Found]:
    """Leaves out hidden files and whatever lies in hidden folders below ``root``."""
    for path in paths:
        relative = os.path.relpath(path, root or ".").replace(os.sep, "/")
        if not any(part.startswith(".") and part not in (".", "..") for part in relative.split("/")):
            yield _Found(path, relative, named)


def _walk(folder: str, above: set[tuple[int, int]]) -> Iterator[str]:
    """Files of a local folder and its subfolders; linked folders are followed, but not back into one that
    leads to them.
    """
    status = Path(folder).stat()
    if (status.st_dev, status.st_ino) in above:
        return
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(entry.path, above | {(status.st_dev, status.st_ino)})
        elif entry.is_file() or entry.is_symlink():  # a dangling link becomes a reject when it is opened
            yield entry.path


def _fixed_folder(pattern: str) -> str:
    """The folder part of a glob before its first wildcard."""
    parts = pattern.split("/")
    first = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:first]) or ("/" if pattern.startswith("/") else "")


def _classify(filesystem: Any, item: _Found, wanted: str) -> SourceFile | None:
    """The file with its format, or None where the extension does not fit and the file was not named
    itself.
    """
    suffixes = [suffix.lower() for suffix in PurePosixPath(item.path).suffixes]
    compression = _COMPRESSIONS.get(suffixes[-1], "") if suffixes else ""
    known = FORMATS.get(suffixes[-2 if compression else -1], "") if len(suffixes) > bool(compression) else ""
    if known == "parquet" and compression:
        known = ""
    chosen = known if wanted == "auto" else wanted
    if not chosen or (known != chosen and not item.named):
        return None
    name = item.path if filesystem is None else filesystem.unstrip_protocol(item.path)
    return SourceFile(mend(str(name)), item.path, item.relative, chosen, compression, filesystem)


def told(endings: Counter[str]) -> str:
    """The commonest endings with their numbers."""
    return ", ".join(f"{ending} ({count:,})" for ending, count in endings.most_common(8))


def _no_file(path: str, others: Counter[str], wanted: str) -> str:
    fitting = _KNOWN if wanted == "auto" else f"source.format is {wanted}"
    commonest = next(iter(others.most_common(1)), ("", 0))[0].lower()
    remedy = next(
        (said for names, said in _OTHERS.items() if commonest in names.split()),
        "set source.format and name the files or a pattern",
    )
    return f"{path} holds no file that can be read; found {told(others)}; {fitting}; {remedy}"
