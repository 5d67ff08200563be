"""Gold labels: a file of ids and true labels, in any format the sources read. A filled-in review is one."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import SourceConfig
from pipeline.errors import UsageError
from pipeline.records import Document
from pipeline.sources import read_source

_SHOWN = 5


def read_gold(path: str | Path, labels: tuple[str, ...], *, id_field: str = "id", label_field: str = "label") -> dict[str, str]:
    """Labels by document id. Rows without a label are left out: a review that is half filled in is a smaller gold set.

    Raises UsageError for a file without gold labels, and for labels that are none of the task's; SourceError when it cannot be read.
    """
    if not Path(path).exists():
        raise UsageError(f"there is no gold file {path}")
    found: dict[str, str] = {}
    wrong: list[str] = []
    clashing: list[str] = []
    for row in read_source(SourceConfig(path=str(path), id_field=id_field, text_field=label_field), ()):
        label = row.text.strip() if isinstance(row, Document) else ""
        if not isinstance(row, Document) or not label:
            continue
        if label not in labels:
            wrong.append(f"{label!r} (document {row.id!r})")
        elif found.setdefault(row.id, label) != label:
            clashing.append(repr(row.id))
    if wrong:
        raise UsageError(
            f"{path} has labels that the task does not have: {', '.join(wrong[:_SHOWN])}{_more(wrong)}; it has {', '.join(labels)}"
        )
    if clashing:
        raise UsageError(f"{path} gives different labels to the same document: {', '.join(clashing[:_SHOWN])}{_more(clashing)}")
    if not found:
        raise UsageError(f"{path} holds no gold labels: rows with the fields {id_field!r} and {label_field!r} are needed")
    return found


def _more(names: list[str]) -> str:
    return f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
