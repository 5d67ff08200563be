"""Tables and bars of a report. Cells are escaped before they come here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_BAR = 24


def bar(count: int, counts: Iterable[int]) -> str:
    """A bar as long as ``count`` is large among ``counts``."""
    return "█" * round(_BAR * count / max(1, *counts))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of Markdown, an empty one last."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(cells) + " |" for cells in rows), ""]
