"""The facts of ``overnight evaluate`` as lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.tasks.registry import answers_of


def render(facts: Mapping[str, Any]) -> list[str]:
    """Lines for people."""
    lines: list[str] = []
    for name, found in facts["tasks"].items():
        lines += ["", f"== task {name} ==", *_heading(found)]
        lines += [
            f"{title.replace('_', ' '):<18}{_interval(value)}" for title, value in found["headline"].items()
        ]
        lines += answers_of(found["kind"]).evaluation_table(found)
    return [*lines[1:], *(f"plot: {path}" for path in facts["plots"])]


def _heading(found: Mapping[str, Any]) -> list[str]:
    left = [f"left out: {counts(found['left_out'])}"] if found["left_out"] else []
    return [*answers_of(found["kind"]).evaluation_heading(found), *left, *found["notes"]]


def share(value: float | None) -> str:
    """A share for a table."""
    return "-" if value is None else f"{value:.3f}"


def _interval(value: Mapping[str, Any]) -> str:
    shown = f"{value['value']:.3f}"
    return shown if value["low"] is None else f"{shown}  ({value['low']:.3f} to {value['high']:.3f})"


def counts(left_out: Mapping[str, int]) -> str:
    """How many gold rows are left out, by reason."""
    return ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
