"""Bytes, seconds and moments as people read and write them: the only place where they become words."""

from __future__ import annotations

import re
import time


def amount(count: float) -> str:
    """``1.0 GiB``, ``512 MiB`` or ``16 KiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}" if unit == "GiB" else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"


def counted(count: int, noun: str) -> str:
    """``1 file``, ``2,000 files``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float) -> str:
    """``2.1 ms``, ``43 ms``, ``1.2 s``, ``45 s``, ``12 min`` or ``3 h 05 min``."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{round(seconds, 1):g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60:,} h {minutes % 60:02} min"


def moment(seconds: float) -> str:
    """``2026-11-30 22:00:05``: seconds since 1970 by the clock of whoever reads it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def parse_bytes(value: int | str) -> int:
    """Bytes of ``20GB`` (10**9) or ``7GiB`` (2**30); a bare number is bytes. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not a size; write for example 20GB or 7GiB")
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value), re.ASCII)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{value!r:.80} is not a size; write for example 20GB or 7GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])
