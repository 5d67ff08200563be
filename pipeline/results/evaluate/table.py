"""The facts of ``overnight evaluate`` as lines for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def render(facts: Mapping[str, Any]) -> list[str]:
    """Lines for people."""
    lines: list[str] = []
    for name, found in facts["tasks"].items():
        lines += ["", f"== task {name} ==", *_heading(found)]
        lines += [
            f"{title.replace('_', ' '):<18}{_interval(value)}" for title, value in found["headline"].items()
        ]
        lines += _table(found.get("per_label", ()))
    return [*lines[1:], *(f"plot: {path}" for path in facts["plots"])]


def _heading(found: Mapping[str, Any]) -> list[str]:
    compared = f"{found['judged']:,} documents compared"
    if "abstained" in found:
        compared += f", {found['abstained']:,} of them abstained from; "
        compared += (
            f"they have {found['labels_per_document']:.2f} labels on average"
            if found["multi"]
            else f"the most frequent label has {found['majority_share']:.1%} of them"
        )
    left = [f"left out: {counts(found['left_out'])}"] if found["left_out"] else []
    view = [
        f"view {found['view']}: {found['view_sentence']}"
        if found["view"]
        else "the model's own labels, uncalibrated"
    ]
    return [*(view if found["kind"] == "label" else []), compared, *left, *found["notes"]]


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    width = max(5, *(len(row["label"]) for row in rows))
    lines = ["", f"{'label':<{width}}  {'gold':>6}  {'given':>6}  {'right':>6}  precision  recall     f1"]
    for row in rows:
        shares = f"{_share(row['precision']):>9}  {_share(row['recall']):>6}  {_share(row['f1']):>5}"
        lines.append(
            f"{row['label']:<{width}}  {row['gold']:>6,}  {row['predicted']:>6,}  {row['right']:>6,}  "
            f"{shares}"
        )
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(value: Mapping[str, Any]) -> str:
    shown = f"{value['value']:.3f}"
    return shown if value["low"] is None else f"{shown}  ({value['low']:.3f} to {value['high']:.3f})"


def counts(left_out: Mapping[str, int]) -> str:
    """How many gold rows are left out, by reason."""
    return ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
