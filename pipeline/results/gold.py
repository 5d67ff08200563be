"""Gold labels: a file of ids and true labels, in any format the sources read. A filled-in review is one.

Several labels a document (``multi``) are a list in JSON, and in a table the labels with ``|`` or ``;``
between them, or a JSON list; ``[]`` says that a document has none of them, while an empty cell says nothing.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.config import SourceConfig, as_written
from pipeline.errors import UsageError
from pipeline.records import FieldValue
from pipeline.sources import read_values
from pipeline.sources.files import is_table
from pipeline.system.escape import from_spreadsheet

_SHOWN = 5

GoldLabel = str | tuple[str, ...]
"""A document's true label; with ``multi`` all of them, in the task's order."""


def read_gold(
    paths: Sequence[str | Path],
    labels: Sequence[str],
    *,
    multi: bool = False,
    id_field: str = "id",
    label_field: str = "label",
) -> dict[str, GoldLabel]:
    """Labels by document id, of all files together. Rows without a label are left out: a review that is half
    filled in is a smaller gold set.

    Raises UsageError for a file without gold labels, and for labels that are none of the task's; SourceError
    when it cannot be read.
    """
    told = ", ".join(map(str, paths))
    found: dict[str, GoldLabel] = {}
    wrong: list[str] = []
    clashing: list[str] = []
    for name, text in (row for path in paths for row in _rows(path, id_field, label_field)):
        named = parse_labels(text, labels) if multi else (text,)
        unknown = [label for label in named if label not in labels]
        wrong += [f"{label!r} (document {name!r})" for label in unknown]
        label: GoldLabel = tuple(known for known in labels if known in named) if multi else text
        if not unknown and found.setdefault(name, label) != label:
            clashing.append(repr(name))
    if wrong:
        raise UsageError(
            f"{told} has labels that the task does not have: {', '.join(wrong[:_SHOWN])}{_more(wrong)}; "
            f"it has {', '.join(labels)}"
        )
    if clashing:
        raise UsageError(
            f"{told} gives different labels to the same document: "
            f"{', '.join(clashing[:_SHOWN])}{_more(clashing)}"
        )
    if not found:
        raise UsageError(
            f"{told} holds no gold labels: rows with the fields {id_field!r} and {label_field!r} are needed"
        )
    return found


def gold_ids(path: str | Path, *, id_field: str = "id", label_field: str = "label") -> set[str]:
    """Ids of the documents that a file gives a label to, whatever it is. Raises UsageError, SourceError."""
    return {name for name, _ in _rows(path, id_field, label_field)}


def parse_labels(text: str, labels: Sequence[str]) -> tuple[str, ...]:
    """The labels that a cell names; those that the task does not have are among them as they are written."""
    if text in labels:
        return (text,)
    if text.startswith("["):
        try:
            listed = json.loads(text)
        except ValueError:
            return (text,)
        return tuple(str(one).strip() for one in listed) if isinstance(listed, list) else (text,)
    mark = "|" if "|" in text else ";"
    return tuple(dict.fromkeys(part for part in (piece.strip() for piece in text.split(mark)) if part))


def written_labels(named: Sequence[str]) -> str:
    """``named`` as one cell that ``parse_labels`` reads again."""
    plain = bool(named) and not any("|" in label or ";" in label or label.startswith("[") for label in named)
    return "|".join(named) if plain else json.dumps(list(named), ensure_ascii=False)


def _rows(path: str | Path, id_field: str, label_field: str) -> Iterator[tuple[str, str]]:
    """Id and label of each row that has both, as they were before our own files escaped them for
    spreadsheets.
    """
    back = from_spreadsheet if is_table(str(path)) else str
    for name, value in read_values(_source(path, id_field, label_field)):
        label = _label(value)
        if label:
            yield back(name), back(label)


def _source(path: str | Path, id_field: str, label_field: str) -> SourceConfig:
    name = str(path)
    if "://" not in name and not glob.has_magic(name) and not Path(name).exists():
        raise UsageError(f"there is no gold file {path}")
    return SourceConfig(path=as_written(name), id_field=id_field, text_field=label_field)


def _label(value: FieldValue) -> str:
    """The label as text; whole numbers are written out, as a table would hold them."""
    return "" if value is None or isinstance(value, bool) else str(value).strip()


def _more(names: list[str]) -> str:
    return f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
