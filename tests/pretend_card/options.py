"""What a process's pretended cards are: the variables of the environment that begin with ``PRETEND_``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "PRETEND_CARD"  # what switches the whole of it on
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True)
class Options:
    """The cards of a process.

    PRETEND_CARD        how large a card is, "8GiB"; "2x8GiB" for two
    PRETEND_CONTEXT     what a process's CUDA context takes of each (450MiB)
    PRETEND_FOREIGN     what other programs hold (0)
    PRETEND_CAPABILITY  compute capability (8.9)
    PRETEND_STRICT      0: races are noted, not raised
    PRETEND_POISON      0: new memory is not filled with 0xFF
    PRETEND_DRY         1: large tensors are followed (memory, launches, waits), not computed, so that
                        models of any size go
    PRETEND_LOG         a folder: every process leaves PID.json there, see ``report.py``
    PRETEND_FAIL        "after=N,kind=lost|oom|cublas": the N-th launch from now fails.
                        "kind=gone,mark=PATH": the card is lost, and processes that start later find none,
                        as PATH is there then
    """

    cards: int
    total_bytes: int
    context_bytes: int
    foreign_bytes: int
    capability: tuple[int, int]
    strict: bool
    poison: bool
    dry: bool
    log: str | None
    fail: tuple[int, str] | None
    gone_mark: str | None


def options_of(environment: Mapping[str, str] = os.environ) -> Options:
    """The options that an environment says. Raises ValueError for a size that is none."""
    many, _, size = environment.get(VARIABLE, "8GiB").rpartition("x")
    major, _, minor = environment.get("PRETEND_CAPABILITY", "8.9").partition(".")
    return Options(
        cards=int(many or 1),
        total_bytes=bytes_of(size),
        context_bytes=bytes_of(environment.get("PRETEND_CONTEXT", "450MiB")),
        foreign_bytes=bytes_of(environment.get("PRETEND_FOREIGN", "0")),
        capability=(int(major), int(minor)),
        strict=environment.get("PRETEND_STRICT", "1") == "1",
        poison=environment.get("PRETEND_POISON", "1") == "1",
        dry=environment.get("PRETEND_DRY", "0") == "1",
        log=environment.get("PRETEND_LOG") or None,
        fail=_failure(environment.get("PRETEND_FAIL", "")),
        gone_mark=_said(environment.get("PRETEND_FAIL", "")).get("mark"),
    )


def is_pretended(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a process that starts with ``environment`` has cards."""
    mark = _said(environment.get("PRETEND_FAIL", "")).get("mark")
    return bool(environment.get(VARIABLE)) and not (mark and os.path.exists(mark))  # noqa: PTH110


def bytes_of(text: str) -> int:
    """``"7.5GiB"`` in bytes."""
    found = re.fullmatch(r"([\d.]+)\s*([KMG]?i?B)?", text.strip())
    if not found:
        raise ValueError(f"{text!r} is no size; 8GiB is one")
    return int(float(found[1]) * _UNITS[found[2] or ""])


def _failure(text: str) -> tuple[int, str] | None:
    said = _said(text)
    return (int(said["after"]), said.get("kind", "lost")) if said else None


def _said(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",")) if text else {}
