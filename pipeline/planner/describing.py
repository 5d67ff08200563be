"""Numbers as people read them: bytes and seconds."""

from __future__ import annotations


def amount(count: float) -> str:
    """``1.0 GiB``, ``512 MiB`` or ``16 KiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}" if unit == "GiB" else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """``43 ms``, ``1.2 s``, ``12 min`` or ``7.5 h``."""
    if seconds < 1:
        return f"{seconds * 1000:,.1f} ms" if seconds < 0.01 else f"{seconds * 1000:,.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
