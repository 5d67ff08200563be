"""Which label of a task a person means: written in another case, or with its accents encoded otherwise, it is
the same.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def label_meant(written: str, labels: Iterable[str]) -> str | None:
    """The label that ``written`` is; None where it is none, or could be several."""
    known = list(labels)
    if written in known:
        return written
    alike = [label for label in known if _folded(label) == _folded(written)]
    return alike[0] if len(alike) == 1 else None


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
