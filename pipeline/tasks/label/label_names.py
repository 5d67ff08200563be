"""Which label of a task a person means: written in another case, or with its accents encoded otherwise, it is
the same; and so is a whole number with ``.0`` behind it, which tables make of numbers where one is missing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from pipeline.sources.rows import whole_number


def label_meant(written: str, labels: Iterable[str]) -> str | None:
    """The label that ``written`` is; None where it is none, or could be several."""
    known = list(labels)
    if written in known:
        return written
    meant = {_folded(written), _folded(whole_number(written))}
    alike = [label for label in known if _folded(label) in meant]
    return alike[0] if len(alike) == 1 else None


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
