"""Which files of a folder are meant: the records, not what is written about them, and those of one split."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.config import SourceConfig
from pipeline.errors import SourceError
from pipeline.sources.files import SourceFile, expand
from pipeline.system.yaml_text import NotYaml, read_yaml

# what libraries write about a dataset, beside it
_ABOUT = {"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "croissant.json"}
_ALIKE = (
    ("train", "training"),
    ("test", "testing", "eval", "evaluation"),
    ("validation", "valid", "val", "dev"),
)
_FRONT = re.compile(r"\A---\r?\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)


def meant(path: str, config: SourceConfig) -> tuple[list[SourceFile], list[SourceFile], Counter[str]]:
    """The files that are read of one configured path, those that are left out as being about them, and how
    many others are by their ending. Raises SourceError.
    """
    files, others = expand(path, config)
    kept, about = records_alone(files) if config.format == "auto" else (files, [])
    return of_split(path, kept, config), about, others


def records_alone(files: Sequence[SourceFile]) -> tuple[list[SourceFile], list[SourceFile]]:
    """``files`` of a folder or a pattern without texts (README.md, a licence) and descriptions of a dataset
    where there are files of records, and what was left out.
    """
    about = [file for file in files if PurePosixPath(file.relative).name.lower() in _ABOUT]
    others = [file for file in files if file not in about]
    texts = [file for file in others if file.format == "text"]
    if len(texts) == len(others):
        return list(files), []
    return [file for file in others if file.format != "text"], [*texts, *about]


def of_split(path: str, files: Sequence[SourceFile], config: SourceConfig) -> list[SourceFile]:
    """Those of ``files`` that are of the configured split: by the card of the dataset, else by the name of
    each file or of a folder that it lies in. Raises SourceError where there are none.
    """
    if config.split is None:
        return list(files)
    patterns = _of_the_card(path, config)
    if patterns is not None:
        found = [file for file in files if any(fnmatch.fnmatch(file.relative, one) for one in patterns)]
    else:
        found = [file for file in files if _is_named(file, config.split)]
    if found:
        return found
    if config.split == "train" and not any(_is_named(file, name) for file in files for name in _KNOWN):
        return list(files)  # older versions have recorded this of every source
    shown = ", ".join(file.relative for file in files[:5]) + (", …" if len(files) > 5 else "")
    raise SourceError(
        f"source.split: {config.split} has no effect on {path}: none of its files is of that split, by its "
        f"name, its folder's or the dataset's card ({shown}); leave the key out, or name the files themselves"
    )


_KNOWN = [name for names in _ALIKE for name in names]


def _is_named(file: SourceFile, split: str) -> bool:
    """Whether ``split``, or another word for it, stands by itself in the path below what was given."""
    names = next((alike for alike in _ALIKE if split.lower() in alike), (split.lower(),))
    words = "|".join(map(re.escape, names))
    return re.search(rf"(?<![a-z0-9])(?:{words})(?![a-z])", file.relative.lower()) is not None


def _of_the_card(path: str, config: SourceConfig) -> list[str] | None:
    """Patterns of the configured split, as the front matter of README.md has them; None where it has none."""
    card = Path(path) / "README.md"
    front = _FRONT.match(card.read_text(encoding="utf-8", errors="replace")) if card.is_file() else None
    try:
        said = read_yaml(front[1]).value if front else None
    except NotYaml:
        return None
    configs = said.get("configs") if isinstance(said, Mapping) else None
    for one in configs if isinstance(configs, list) else ():
        if isinstance(one, Mapping) and one.get("config_name", "default") == (config.subset or "default"):
            files = _data_files(one.get("data_files"))
            return [pattern for split, pattern in files if split == config.split] or None
    return None


def _data_files(said: Any) -> Iterator[tuple[str, str]]:
    """(split, pattern) of a card's ``data_files``: a pattern, a list of them, or each with its split."""
    for one in said if isinstance(said, list) else [said]:
        if isinstance(one, str):
            yield "train", one
        elif isinstance(one, Mapping):
            paths = one.get("path")
            for path in paths if isinstance(paths, list) else [paths]:
                if isinstance(path, str):
                    yield str(one.get("split", "train")), path
