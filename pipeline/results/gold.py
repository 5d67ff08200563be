"""Gold labels: a file of ids and true labels, in any format the sources read. A filled-in review is one.

Several labels a document (``multi``) are a list in JSON, and in a table the labels with ``|`` or ``;``
between them, or a JSON list; ``[]`` says that a document has none of them, while an empty cell says nothing.
"""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import SourceConfig, absolute_path, as_written
from pipeline.errors import UsageError
from pipeline.records import FieldValue, Reject
from pipeline.sources import read_values
from pipeline.sources.files import is_table
from pipeline.system.escape import from_spreadsheet
from pipeline.tasks.label.label_names import label_meant

_SHOWN = 5
_PROPOSED = "proposed_label"  # a column of reviews, whose documents are chosen

GoldLabel = str | tuple[str, ...]
"""A document's true label; with ``multi`` all of them, in the task's order."""


class Gold(dict[str, GoldLabel]):
    """Labels by document id. ``files`` says where each was read, as far as that is known; ``unused`` counts
    rows of the files that give none, by reason; ``chosen`` are the documents that a review has picked: no
    random ones. ``notes`` is what else must be said of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, str] = {}
        self.unused: Counter[str] = Counter()
        self.chosen: set[str] = set()
        self.notes: list[str] = []

    def told(self) -> list[str]:
        """The rows that are not used, and the notes, in words."""
        unused = [f"{count:,} rows of gold files not used: {reason}" for reason, count in self.unused.items()]
        return [*unused, *self.notes]

    def no_sample(self, used: Collection[str]) -> str:
        """What must be said where all that is ``used`` was chosen; "" otherwise."""
        if not used or not self.chosen.issuperset(used):
            return ""
        return (
            "all gold labels used are of documents that overnight review chose, which is no random sample: "
            "how often answers are right on them is not how often they are right"
        )


def all_files(given: Path | Sequence[Path]) -> tuple[Path, ...]:
    """One file, or several."""
    return (given,) if isinstance(given, Path) else tuple(given)


def read_gold(
    paths: Sequence[str | Path],
    labels: Sequence[str],
    *,
    multi: bool = False,
    id_field: str = "id",
    label_field: str = "label",
) -> Gold:
    """Labels by document id, of all files together. Rows without a label are left out and counted: a review
    that is half filled in is a smaller gold set.

    Raises UsageError for a file without gold labels, for labels that are none of the task's, and for
    documents that are given several; SourceError when one cannot be read.
    """
    found = Gold()
    wrong: list[str] = []
    clashing: list[str] = []
    for path in paths:
        before, told = len(found), Counter[str]()
        used = 0
        for row in _rows(path, id_field, label_field, told):
            used += 1
            named = [label_meant(one, labels) or one for one in parse_labels(row.label, labels, multi=multi)]
            unknown = [one for one in named if one not in labels]
            wrong += [f"{one!r} (document {row.id!r})" for one in unknown]
            label: GoldLabel = tuple(one for one in labels if one in named) if multi else named[0]
            if not unknown and (first := found.setdefault(row.id, label)) != label:
                clashing.append(f"{row.id!r} ({spoken(first)}, {spoken(label)})")
            found.files.setdefault(row.id, absolute_path(str(path)))
            if row.chosen:
                found.chosen.add(row.id)
        found.unused += told
        if not used and len(found) == before:
            reasons = "".join(f"; {count:,} rows: {reason}" for reason, count in told.items())
            raise UsageError(
                f"{path} holds no gold labels: rows with the fields {id_field!r} and {label_field!r} are "
                f"needed{reasons}"
            )
    _refuse(", ".join(map(str, paths)), labels, wrong, clashing)
    return found


def _refuse(paths: str, labels: Sequence[str], wrong: list[str], clashing: list[str]) -> None:
    if wrong:
        raise UsageError(
            f"{paths} has labels that the task does not have: {some(wrong)}; it has {', '.join(labels)}"
        )
    if clashing:
        raise UsageError(
            f"{paths} gives different labels to the same document: {some(clashing)}; keep one of each"
        )


def spoken(label: GoldLabel) -> str:
    """For people."""
    return label if isinstance(label, str) else written_labels(label)


def some(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def gold_ids(path: str | Path, *, id_field: str = "id", label_field: str = "label") -> set[str]:
    """Ids of the documents that a file gives a label to, whatever it is. Raises UsageError, SourceError."""
    return {row.id for row in _rows(path, id_field, label_field, Counter())}


def parse_labels(text: str, labels: Sequence[str], *, multi: bool = True) -> tuple[str, ...]:
    """The labels that a cell names, one unless ``multi``; those that the task does not have are among them as
    they are written.
    """
    if not multi or label_meant(text, labels) is not None:
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


@dataclass(frozen=True, slots=True)
class _Row:
    id: str
    label: str
    chosen: bool


def _rows(path: str | Path, id_field: str, label_field: str, unused: Counter[str]) -> Iterator[_Row]:
    """Each row that has an id and a label, as they were before our own files escaped them for spreadsheets;
    the others are counted in ``unused``.
    """
    back = from_spreadsheet if is_table(str(path)) else str
    places: dict[str, str] = {}
    for row in read_values(_source(path, id_field, label_field), (_PROPOSED,)):
        if isinstance(row, Reject):
            where = f"{row.origin.file}, line {row.origin.line}"
            unused[f"{row.reason} (first: {places.setdefault(row.reason, where)})"] += 1
        elif label := _label(row.value):
            yield _Row(back(row.id), back(label), _PROPOSED in row.fields)
        else:
            unused[f"without a label ({path})"] += 1


def _source(path: str | Path, id_field: str, label_field: str) -> SourceConfig:
    name = str(path)
    if "://" not in name and not glob.has_magic(name) and not Path(name).exists():
        raise UsageError(f"there is no gold file {path}")
    return SourceConfig(path=as_written(name), id_field=id_field, text_field=label_field)


def _label(value: FieldValue) -> str:
    """The label as text; whole numbers are written out, as a table would hold them."""
    return "" if value is None or isinstance(value, bool) else str(value).strip()
